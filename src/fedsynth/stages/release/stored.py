"""A stored release as the record it is, whatever its variant."""

from __future__ import annotations

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.prototypes import MomentRelease
from fedsynth.records import ShardRelease


def load_release(artifact: Artifact) -> ShardRelease | MomentRelease:
    """The record in ``release.safetensors``, told apart by its tensors.

    Raises:
        ArtifactError: If it is neither.
    """
    tensors = artifact.load("release.safetensors")
    if "frame.basis" not in tensors:
        return ShardRelease.from_tensors(tensors)
    return MomentRelease.from_tensors(tensors)
