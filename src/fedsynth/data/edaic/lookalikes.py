"""What lies on disk instead of a file or folder that is missing, so that an error can say so. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def hint(missing: Path, places: Iterable[Path], root: Path) -> str:
    """The tail of a message about a missing file or folder: what resembles it; empty if nothing does.

    Args:
        missing: What should be there.
        places: Folders to look into, e.g. for a name in other letter case or an archive.
        root: Paths are shown relative to it.
    """
    for place in places:
        try:
            found = next(
                filter(None, (_resembles(entry, missing, root) for entry in sorted(place.iterdir()))), ""
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"; cannot look into {place.relative_to(root).as_posix()}/: {error.strerror}"
        if found:
            return f"; {found}"
    return ""


def _resembles(entry: Path, missing: Path, root: Path) -> str:
    shown, name, wanted = entry.relative_to(root).as_posix(), entry.name.lower(), missing.name.lower()
    if entry == missing:
        if not entry.exists():
            return f"{shown} is a link to nothing"
        return f"{shown} is a {'folder' if entry.is_dir() else 'file'}"
    if name == wanted:
        return f"found as {shown}"
    return f"{shown} is not extracted" if name.startswith(f"{wanted}.") and entry.is_file() else ""
