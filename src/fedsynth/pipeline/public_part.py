"""What a server gets of a released artifact that also keeps private files: a folder without them.

A stage on the clients may release images and still have to keep what it knows of them: which record each was made of,
what was refused, how it decided. Such files lie below ``private/`` of its artifact, such notes under ``private``;
clients and auditors read them as any other. A server is handed another folder, with hard links to the other files and a
manifest that names nothing else, and without what was measured on the clients (metrics).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsynth.errors import ArtifactError
from fedsynth.pipeline.artifacts import MANIFEST, Artifact, explained
from fedsynth.pipeline.stage import PRIVATE

#: Entries of a manifest that a server needs to use an artifact. All others, known or to come, stay where they are.
SHOWN = (
    "kind", "side", "sensitivity", "simulated", "settings", "inputs", "ledger", "uncovered", "stage", "key",
)  # fmt: skip


def is_private_file(name: str) -> bool:
    """Whether a file of an artifact, named from its folder, is kept from servers."""
    return name.startswith(f"{PRIVATE}/")


def has_private_part(artifact: Artifact) -> bool:
    """Whether the artifact holds anything that a server must not read."""
    files, notes = artifact.manifest["files"], artifact.manifest.get("notes") or {}
    return PRIVATE in notes or any(map(is_private_file, files))


def public_part(artifact: Artifact, folder: Path) -> Artifact:
    """The artifact as a server sees it; the artifact itself if it has no private part.

    Args:
        artifact: Of a released stage.
        folder: Where the server's files are put, on the file system of the store; emptied first.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    if not has_private_part(artifact):
        return artifact
    manifest = public_manifest(artifact.manifest)
    with explained(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in manifest["files"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            _link(artifact.file(name), folder / name)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=True) + "\n")
    return replace(artifact, path=folder, manifest=manifest, is_public_part=True)


def public_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without private files and notes, metrics, and whatever else a server has no use for."""
    return {
        **{name: manifest[name] for name in SHOWN if name in manifest},
        "metrics": [],
        "notes": {name: note for name, note in (manifest.get("notes") or {}).items() if name != PRIVATE},
        "files": {name: entry for name, entry in manifest["files"].items() if not is_private_file(name)},
    }


def require_declared(stage: str, *, keeps_private: bool, output: Path, notes: dict[str, Any]) -> None:
    """Refuse private files of a stage that has not declared any: marks of what is made of it would be too low.

    Raises:
        ArtifactError: Naming the stage.
    """
    if not keeps_private and (PRIVATE in notes or (output / PRIVATE).exists()):
        raise ArtifactError(
            f"stages.{stage} wrote private files or notes, but its Stage does not say keeps_private=True. Say so in its "
            "spec.py: what others make of such files is private."
        )


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
