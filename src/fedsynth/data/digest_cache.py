"""SHA-256 of large files without reading them again: remembered by size, time of change and inode."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from pathlib import Path

from filelock import FileLock

from fedsynth.data.source_files import digest_of

logger = logging.getLogger(__name__)

# A file changed just now may change again within the same tick of the clock: its digest is not kept.
SETTLED_NS = 2_000_000_000


class DigestCache:
    """Digests of files as of their last change.

    What changes a file in place and gives it its old size and time back, as ``touch -r`` does, is not noticed: delete
    the cache then. Two processes may use one cache: what both learn is kept. A damaged cache is a lost cache, no error.

    Args:
        path: The file to keep them in, JSON; its folder is made. None keeps nothing.
        read_only: Use what is there, write nothing.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only or path is None
        self._known = self._read()
        self._learned: dict[str, list[int | str]] = {}

    def sha256(self, file: Path) -> str:
        """The digest of a file, read only if it changed since.

        Raises:
            DataError: If it has to be read and cannot be.
        """
        name, state = str(file.absolute()), _state(file)
        known = self._known.get(name)
        if state is not None and known is not None and known[:3] == state:
            return str(known[3])
        digest = digest_of(file, "sha256")
        # Of a file that changed while it was read, the digest belongs to neither state.
        if state is not None and _state(file) == state and time.time_ns() - state[1] > SETTLED_NS:
            self._learned[name] = [*state, digest]
            self._known[name] = self._learned[name]
        return digest

    def save(self) -> None:
        """Write what was learned, in one step, beside what others wrote meanwhile."""
        if self.read_only or not self._learned or self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):
                content = {**self._read(), **self._learned}
                handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
                try:
                    with os.fdopen(handle, "w") as file:
                        json.dump(content, file)
                    os.replace(temporary, self.path)
                except BaseException:
                    Path(temporary).unlink(missing_ok=True)
                    raise
            self._learned = {}
        except OSError as error:
            logger.warning(
                "Cannot keep digests in %s (%s): the next start reads all files.", self.path, error
            )

    def _read(self) -> dict[str, list[int | str]]:
        if self.path is None or not self.path.is_file():
            return {}
        try:
            content = json.loads(self.path.read_text())
            entries = {str(name): list(entry) for name, entry in content.items()}
            if any(len(entry) != 4 or not isinstance(entry[3], str) for entry in entries.values()):
                raise ValueError("an entry is no size, time, inode and digest")
            return entries
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            logger.warning("%s is damaged (%s) and not used: all files are read again.", self.path, error)
            return {}


def _state(file: Path) -> list[int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino]
