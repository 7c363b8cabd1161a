"""What a file that a setting names holds: the part of it that decides a result, and so enters the artifact's key."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.fingerprint import file_digest, fingerprint

# A file changed just now may change again within the same tick of the clock: its digest is not kept.
SETTLED_NS = 2_000_000_000
_known: dict[Path, tuple[tuple[int, int, int], str]] = {}


def content_key(value: Any, *, below: str | None = None) -> Any:
    """What stands for a setting in a key: of a file or folder its content, wherever it lies; else the value itself.

    The digest of a file is kept in memory until its size, its time of change or its inode differs, so that planning
    again reads nothing. What changes a file and gives it its old size and time back is not noticed by this process.

    Args:
        value: A path, or something else, such as the name of a published model; that stays as it is.
        below: The part of a folder that is read; the others do not count.

    Returns:
        ``{"sha256": …}`` of a file's bytes, or of the names and bytes of all files of a folder; hidden files, which
        tools leave behind, are no part of it.

    Raises:
        ConfigError: If a file is there but cannot be read.
    """
    if not isinstance(value, str) or not value:
        return value
    path = Path(os.path.expanduser(value)) / (below or "")  # an unknown ~user stays
    try:
        if path.is_file():
            return {"sha256": _digest(path)}
        if path.is_dir():
            return {"sha256": _folder_digest(path)}
    except OSError as error:
        raise ConfigError(
            f"Cannot read {error.filename or path}: {error.strerror}. Check the file and its permissions."
        ) from error
    return value


def _folder_digest(folder: Path) -> str:
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    shown = sorted(name for name in names if not any(part.startswith(".") for part in name.parts))
    return fingerprint({name.as_posix(): _digest(folder / name) for name in shown})


def _digest(path: Path) -> str:
    place, state = path.absolute(), _state(path)
    known = _known.get(place)
    if known is not None and known[0] == state:
        return known[1]
    digest = file_digest(path)
    # Of a file that changed while it was read, the digest belongs to neither state.
    if _state(path) == state and time.time_ns() - state[1] > SETTLED_NS:
        _known[place] = (state, digest)
    return digest


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
