"""Find data sets on disk, say what they are, and never mix real with simulated ones.

Torch-free and quick to import. Content is not parsed here: a truncated or malformed file is found by its
reader (`fedsynth.data.medmnist`, `fedsynth.data.mitbih`). E-DAIC is found by `fedsynth.data.edaic.source`.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from fedsynth.data.download import download_file, download_mitbih
from fedsynth.data.official import (
    DATASET_NAMES,
    LICENCES,
    MEDMNIST_SIZES,
    MITDB_SUMS_SHA256,
    MITDB_URL,
    UNPUBLISHED_NAMES,
    official_medmnist,
)
from fedsynth.data.source_files import DataSource, SourceFile, digest_of, make_source
from fedsynth.data.xray.source import BY_SOURCE, places
from fedsynth.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

SourceMode = Literal["auto", "real", "simulated"]

#: In a list of file names: the published name at the size asked for.
OFFICIAL = "official"


def locate(
    name: str,
    data_dir: str | Path,
    *,
    download: bool,
    size: int = 28,
    filename: str | Sequence[str] | None = None,
) -> DataSource:
    """Find one data set below `data_dir`, or download it.

    Looks at ``data_dir/medmnist/<file>``, then ``data_dir/<file>``; for MIT-BIH at ``data_dir/mitdb/``; for X-rays with
    patients, which nobody publishes in this form and which are never downloaded, where `DATASETS` says. A
    digest that differs from the published one is logged and marked ``known=False``, never refused: copies
    with another order or compression are legitimate, damage is the reader's business.

    Args:
        name: One of `DATASET_NAMES`.
        data_dir: The directory that holds the data (DATA_DIR).
        download: Fetch the published files into `data_dir` if nothing is found.
        size: Side of the MedMNIST images in pixels: 28, 64, 128 or 224. Ignored for others.
        filename: Replaces the published file name; of several, the first that exists wins. "official" stands
            for the published one of this size.

    Raises:
        ConfigError: For an unknown name or size.
        DataError: If the data set is not there; lists every place looked in and how to get it.
    """
    _check_request(name, size)
    root = Path(data_dir).expanduser()
    if name == "mitdb":
        return _locate_mitdb(root, download=download)
    if name in UNPUBLISHED_NAMES:
        return _locate_unpublished(name, root)
    official = official_medmnist(name, size)
    file_names = (
        [official.name] if filename is None else [filename] if isinstance(filename, str) else list(filename)
    )
    file_names = [official.name if file == OFFICIAL else file for file in file_names]
    places = [place / file for file in file_names for place in (root / "medmnist", root)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        if not (download and official.name in file_names):
            raise DataError(
                f"{name} not found. Looked at: {', '.join(map(str, places))}. "
                f"Download {official.url} (MD5 {official.md5}; {LICENCES[name]}) to "
                f"{places[0].parent / official.name}, "
                "or let the program do so (data.download=true), or set DATA_DIR to where it is, "
                "or use simulated data (data.source=simulated)."
            )
        path = download_file(official.url, root / "medmnist" / official.name, md5=official.md5)
    simulated = _is_simulated_npz(path)
    published = official.md5 if path.name == official.name and not simulated else None
    return make_source(name, path, [_medmnist_file(path, published)], simulated=simulated)


def resolve_sources(
    names: Iterable[str],
    data_dir: str | Path,
    *,
    mode: SourceMode,
    download: bool,
    simulated_dir: str | Path,
    simulated_seed: int = 0,
    size: int = 28,
    filenames: Mapping[str, str | Sequence[str]] | None = None,
) -> dict[str, DataSource]:
    """All named data sets, either all real or all simulated.

    Args:
        names: Data sets wanted; see `locate`.
        data_dir: Where real data lives (DATA_DIR).
        mode: "real" insists on real data; "simulated" writes or reuses simulated data; "auto" takes real data
            if every set is there (or can be downloaded) and otherwise simulates all of them with a logged
            warning.
        download: See `locate`.
        simulated_dir: Simulated data is written below this directory.
        simulated_seed: Seed of the simulation.
        size: Side of the MedMNIST images in pixels.
        filenames: Optional file names per data set; see `locate`.

    Raises:
        ConfigError: For an unknown mode, name or size.
        DataError: If mode is "real" and a data set is missing, or is a simulated one.
    """
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        _check_request(name, size)
    if mode not in ("auto", "real", "simulated"):
        raise ConfigError(f"data.source must be auto, real or simulated, got {mode!r}.")
    if mode != "simulated":
        found, problems = _find_all(wanted, data_dir, download, size, filenames or {})
        if not problems:
            return found
        if mode == "real":
            raise DataError("\n".join(problems))
        logger.warning(
            "SIMULATED DATA: no result of this run says anything about patients. Real data is incomplete: %s",
            " ".join(problems),
        )
    return {name: _simulate(name, simulated_dir, simulated_seed, size) for name in wanted}


def _check_request(name: str, size: int) -> None:
    if name not in DATASET_NAMES:
        raise ConfigError(f"Unknown data set {name!r}. Known: {', '.join(DATASET_NAMES)}.")
    if name not in UNPUBLISHED_NAMES and size not in MEDMNIST_SIZES:
        raise ConfigError(f"Image size must be one of {MEDMNIST_SIZES} pixels, got {size!r}.")


def _find_all(
    names: list[str],
    data_dir: str | Path,
    download: bool,
    size: int,
    filenames: Mapping[str, str | Sequence[str]],
) -> tuple[dict[str, DataSource], list[str]]:
    """What is there, and one message for each data set that is missing or simulated."""
    found: dict[str, DataSource] = {}
    problems: list[str] = []
    for name in names:
        try:
            # After one failure nothing more is downloaded: the sets are only useful together.
            fetch = download and not problems
            found[name] = locate(name, data_dir, download=fetch, size=size, filename=filenames.get(name))
        except DataError as error:
            problems.append(str(error))
            continue
        if found[name].simulated:
            problems.append(f"{found[name].path} holds simulated data; point DATA_DIR at the real {name}.")
    return found, problems


def _simulate(name: str, simulated_dir: str | Path, seed: int, size: int) -> DataSource:
    from fedsynth.data.simulated import write_simulated

    path = write_simulated(name, Path(simulated_dir), seed=seed, size=size)
    if name in UNPUBLISHED_NAMES:
        return _locate_unpublished(name, path)
    files = _mitdb_files(path, {}) if name == "mitdb" else [_medmnist_file(path, None)]
    return make_source(name, path, files, simulated=True)


def _medmnist_file(path: Path, published_md5: str | None) -> SourceFile:
    md5, sha256 = digest_of(path, "md5"), digest_of(path, "sha256")
    known = None if published_md5 is None else md5 == published_md5
    if known is False:
        logger.warning(
            "%s has MD5 %s, the published file has %s. It is used as it is; results may differ from the "
            "official file.",
            *(path, md5, published_md5),
        )
    return SourceFile(path.name, path, sha256, md5, known)


def _locate_mitdb(root: Path, *, download: bool) -> DataSource:
    directory = root / "mitdb"
    if not any(directory.glob("*.hea")):
        if not download:
            raise DataError(
                f"mitdb (MIT-BIH Arrhythmia Database) not found. Looked at: {directory} (no .hea file). "
                f"Download the .hea, .dat and .atr files, RECORDS and SHA256SUMS.txt from {MITDB_URL} "
                f"(MD5: none published; SHA-256 of SHA256SUMS.txt {MITDB_SUMS_SHA256}; {LICENCES['mitdb']}) "
                f"to {directory}, or let the program do so (data.download=true), or set DATA_DIR to where it "
                "is, or use simulated data (data.source=simulated)."
            )
        download_mitbih(directory)
    simulated = "SIMULATED" in min(directory.glob("*.hea")).read_text(errors="replace")
    published = {} if simulated else _published_sums(directory)
    files = _mitdb_files(directory, published)
    unknown = [file.name for file in files if not file.known]
    if unknown and not simulated:
        logger.warning(
            "%d of %d files in %s could not be matched to PhysioNet's SHA256SUMS.txt (first: %s). They are "
            "used as they are.",
            *(len(unknown), len(files), directory, unknown[0]),
        )
    return make_source("mitdb", directory, files, simulated=simulated)


def _locate_unpublished(name: str, root: Path) -> DataSource:
    """X-rays with patients: all files of the set, whose digests nobody publishes."""
    dataset = BY_SOURCE[name]
    found = [next((place for place in places(root, file) if place.is_file()), None) for file in dataset.files]
    if None in found:
        looked = ", ".join(str(place) for file in dataset.files for place in places(root, file))
        raise DataError(
            f"{name} not found. Looked at: {looked}. No public address has this file, so it is never downloaded. "
            f"{dataset.how_to_make} {LICENCES[name]}. Set DATA_DIR to where it is, or use simulated data "
            "(data.source=simulated)."
        )
    paths = [path for path in found if path is not None]
    files = [SourceFile(path.name, path, digest_of(path, "sha256"), None, None) for path in paths]
    return make_source(name, paths[0], files, simulated=_is_simulated_npz(paths[0]))


def _published_sums(directory: Path) -> dict[str, str]:
    """PhysioNet's digests by file name; empty if SHA256SUMS.txt is absent or not PhysioNet's own."""
    path = directory / "SHA256SUMS.txt"
    if not path.is_file() or digest_of(path, "sha256") != MITDB_SUMS_SHA256:
        return {}
    return {name: digest for digest, name in (line.split() for line in path.read_text().splitlines())}


def _mitdb_files(directory: Path, published: Mapping[str, str]) -> list[SourceFile]:
    # RECORDS says which records are read: a shorter list is another data set.
    paths = sorted(
        path
        for path in directory.iterdir()
        if path.suffix in (".dat", ".hea", ".atr") or path.name == "RECORDS"
    )
    digests = {path: digest_of(path, "sha256") for path in paths}
    return [
        SourceFile(path.name, path, digests[path], None, digests[path] == published[path.name])
        if path.name in published
        else SourceFile(path.name, path, digests[path], None, None)
        for path in paths
    ]


def _is_simulated_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "simulated.npy" in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False  # damaged: the reader says so, with the reason
