"""Writing report files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fedsynth.errors import ArtifactError


def replace_file(path: Path, content: bytes, key: str = "output") -> Path:
    """Write a file in one step, a temporary sibling and a rename, so that nobody ever reads half of it.

    Args:
        path: Its folder is made if needed.
        content: The whole file.
        key: What the user says to have it elsewhere.

    Raises:
        ArtifactError: The file cannot be written.
    """
    try:
        _replace(path, content)
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be written ({error.strerror}). Give another place with {key}=…."
        ) from error
    return path


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
