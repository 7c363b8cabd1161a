"""A data set found on disk: its files, their digests, its licence."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedsynth.data.official import LICENCES, SIMULATED_LICENCE
from fedsynth.errors import DataError


@dataclass(frozen=True)
class SourceFile:
    """One file of a data set with its content digests."""

    name: str
    path: Path
    sha256: str
    md5: str | None
    """Hexadecimal; None where the publisher gives no MD5 (MIT-BIH, E-DAIC)."""
    known: bool | None
    """True: equals the published digest; False: differs from it; None: no digest is published for it."""


@dataclass(frozen=True)
class DataSource:
    """A data set found on disk."""

    name: str
    path: Path
    """The .npz file, the WFDB directory, or the root of a corpus."""
    simulated: bool
    files: tuple[SourceFile, ...]
    licence: str
    digest: str
    """SHA-256 over the sorted names and contents of all files: changes whenever any byte changes."""
    cache_dir: Path | None = None
    """Where a slow reader may keep what it has parsed; None: nowhere."""


def make_source(
    name: str, path: Path, files: list[SourceFile], *, simulated: bool, cache_dir: Path | None = None
) -> DataSource:
    """The data set of these files."""
    licence = SIMULATED_LICENCE if simulated else LICENCES[name]
    lines = "".join(f"{file.sha256}  {file.name}\n" for file in sorted(files, key=lambda file: file.name))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return DataSource(name, path, simulated, tuple(files), licence, digest, cache_dir)


def digest_of(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file's bytes.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise DataError(
            f"Cannot read {path}: {error.strerror}. Check the file and its permissions."
        ) from error
