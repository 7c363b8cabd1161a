"""The store of artifacts: one folder per key, committed by one rename, checked by digest when read.

Layout: ``<root>/<stage>/<key12>/{manifest.json, …}`` once committed; ``<key12>.partial/`` while it is being
made (its checkpoints let a killed run go on); ``<key12>.lock`` so that no two runs make one at a time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.errors import ArtifactError, PrivateInputError
from fedsynth.pipeline.fingerprint import file_digest
from fedsynth.pipeline.stage import PRIVATE, Sensitivity

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
# What every reader of a manifest relies on.
FIELDS: dict[str, type] = {
    "kind": str, "side": str, "sensitivity": str, "simulated": bool, "settings": dict, "inputs": dict,
    "metrics": list, "files": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Artifact:
    """A committed result of a stage.

    Attributes:
        stage: The stage's name in the run that made it.
        key: 64 hex digits over all that decides the content.
        path: Its folder.
        sensitivity: What it depends on.
        manifest: The whole manifest.
        is_public_part: Whether this is what a server sees of an artifact with private files.
    """

    stage: str
    key: str
    path: Path
    sensitivity: Sensitivity
    manifest: dict[str, Any]
    is_public_part: bool = False

    def file(self, name: str) -> Path:
        """The path of one of its files.

        Raises:
            ArtifactError: If the artifact has no such file.
            PrivateInputError: If a server asks for a private file.
        """
        if self.is_public_part and name.startswith(f"{PRIVATE}/"):
            raise PrivateInputError(
                f"{name} of artifact {self.stage} {self.key[:12]} stays with the clients: a server-side stage cannot "
                "read it. Release what the server needs, or run the stage as_auditor."
            )
        if name not in self.manifest["files"]:
            held = ", ".join(self.manifest["files"])
            raise ArtifactError(
                f"artifact {self.stage} {self.key[:12]} has no file {name!r}; it holds {held}."
            )
        return self.path / name

    def load(self, name: str) -> dict[str, Any]:
        """The tensors of one of its safetensors files, and of the private file of the same name if there is one.

        Raises:
            ArtifactError: If the artifact has neither, or a tensor is in both.
            PrivateInputError: If a server asks for a private file.
        """
        from safetensors.torch import load_file

        held = [part for part in (name, f"{PRIVATE}/{name}") if part in self.manifest["files"]]
        tensors: dict[str, Any] = {}
        for part in held or [name]:
            loaded = load_file(self.file(part))
            if twice := tensors.keys() & loaded.keys():
                raise ArtifactError(
                    f"artifact {self.stage} {self.key[:12]} holds {', '.join(sorted(twice))} in {name} and in {part}: "
                    "one of them would hide the other. Name the private tensors otherwise."
                )
            tensors |= loaded
        return tensors


class ArtifactStore:
    """Artifacts below one folder; safe for several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, stage: str, key: str) -> Path:
        return self.root / stage / key[:12]

    def check_writable(self) -> None:
        """Fail now rather than after an hour of training.

        Raises:
            ArtifactError: If the folder cannot be made or written.
        """
        probe = self.root / f".write-test-{os.getpid()}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.write_text("x")
            probe.unlink()
        except OSError as error:
            raise ArtifactError(
                f"cannot write to {self.root}: {error.strerror or error}. "
                "Set LOG_DIR (or paths.log_dir) to a folder you may write to that has space left."
            ) from error

    def find(self, stage: str, key: str, *, verify: bool = True) -> Artifact | None:
        """The committed artifact, or None. With ``verify``, one whose files do not match is set aside."""
        folder = self.folder(stage, key)
        if not folder.exists():
            return None
        problem, manifest = _inspect(folder, key, verify=verify)
        if not problem:
            return Artifact(stage, key, folder, Sensitivity(manifest["sensitivity"]), manifest)
        if not verify:
            return None
        aside = folder.with_name(f"{folder.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        try:
            folder.rename(aside)
        except FileNotFoundError:
            return None  # Another run was faster.
        except OSError as error:
            raise ArtifactError(
                f"{folder} is damaged ({problem}) and cannot be moved aside: {error}."
            ) from error
        log.warning("%s is damaged (%s): moved to %s, will be computed again.", folder, problem, aside.name)
        return None

    @contextmanager
    def lock(self, stage: str, key: str) -> Iterator[None]:
        """Hold the right to make this artifact. Waits for another run; a killed run's lock is free."""
        path = self.folder(stage, key).with_suffix(".lock")
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        with file:
            with explained(path):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    log.warning("Another run is computing %s %s; waiting for it.", stage, key[:12])
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def scratch(self, stage: str, key: str) -> Path:
        """The folder in which this artifact is made; survives a kill."""
        folder = self.folder(stage, key)
        path = folder.with_name(f"{folder.name}.partial")
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def fresh_output(self, stage: str, key: str) -> Path:
        """An empty folder for the artifact's files: what a killed run left half-written is dropped."""
        output = self.scratch(stage, key) / "output"
        with explained(output):
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
        return output

    def commit(self, stage: str, key: str, manifest: dict[str, Any]) -> Artifact:
        """Make the output folder an artifact: digests, manifest, then one atomic rename."""
        scratch = self.scratch(stage, key)
        output = scratch / "output"
        if (output / MANIFEST).exists():
            raise ArtifactError(
                f"stages.{stage} wrote a file named {MANIFEST}; that name is taken, choose another."
            )
        files = sorted(path for path in output.rglob("*") if path.is_file())
        with explained(output):
            digests = {
                str(path.relative_to(output)): {"sha256": file_digest(path), "bytes": path.stat().st_size}
                for path in files
            }
            manifest = {**manifest, "stage": stage, "key": key, "files": digests}
            _write_synced(output / MANIFEST, json.dumps(manifest, indent=1, allow_nan=True) + "\n")
            output.rename(self.folder(stage, key))
            shutil.rmtree(scratch, ignore_errors=True)
        return Artifact(stage, key, self.folder(stage, key), Sensitivity(manifest["sensitivity"]), manifest)


def _inspect(folder: Path, key: str, *, verify: bool) -> tuple[str, dict[str, Any]]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["key"] != key:
            return "its manifest carries another key", {}
        for field, wanted in FIELDS.items():
            if not isinstance(manifest.get(field), wanted):
                return f"its manifest lacks {field}, or it is no {wanted.__name__}", {}
        if not all(
            isinstance(row, dict) and {"arm", "metric", "value"} <= row.keys() for row in manifest["metrics"]
        ):
            return "its manifest has malformed metrics", {}
        present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
        if unknown := sorted(present - manifest["files"].keys()):
            return f"its manifest does not list {', '.join(unknown[:3])}", {}
        for name, recorded in manifest["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != recorded["bytes"]:
                return f"{name} is missing or has another size", {}
            if verify and file_digest(path) != recorded["sha256"]:
                return f"{name} does not match its digest", {}
        Sensitivity(manifest["sensitivity"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"unreadable manifest: {error!r}", {}
    return "", manifest


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed for want of space; safetensors reports that in words only."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(
        error
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failed write into an :class:`ArtifactError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}: {error.strerror or error}. Free some space or set LOG_DIR "
            "(paths.log_dir) elsewhere; finished stages are kept, the same command goes on from there."
        ) from error
