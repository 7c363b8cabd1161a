"""Segments of spoken interviews with audio frames and utterance vectors, as the clients of a federation hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from jaxtyping import Float32, Int64
from torch import Tensor

from fedsynth.data.paired import SPLITS
from fedsynth.errors import ArtifactError


@dataclass(frozen=True)
class SpeechSplit:
    """The segments of one split: by participant, then in time. Rows behind a length are zero."""

    audio: Float32[Tensor, "n t f"]
    """Acoustic descriptors, standardized by the training participants."""
    audio_length: Int64[Tensor, " n"]
    """Frames of each segment, ≥ 1."""
    text: Float32[Tensor, "n u d"]
    """One vector per utterance."""
    text_length: Int64[Tensor, " n"]
    """Utterances of each segment, ≥ 1."""
    label: Int64[Tensor, " n"]
    """1 depressed, 0 not; the same for all segments of a participant."""
    participant: Int64[Tensor, " n"]
    """Number of the participant in the corpus."""
    segment: Int64[Tensor, " n"]
    """Place of the segment among those of its participant, from 0."""
    client: Int64[Tensor, " n"]
    """Client that holds the participant; -1 in validation and test, which are global."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class SpeechClients:
    """All segments of a federation; every participant is in one split and at one client."""

    train: SpeechSplit
    val: SpeechSplit
    test: SpeechSplit
    report: dict[str, Any]
    """Counts by split, client and class, and what was odd about the corpus; plain JSON values."""

    def to_tensors(self) -> dict[str, Tensor]:
        """All but the report as a flat dict for safetensors: ``train/audio`` to ``test/client``."""
        return {
            f"{name}/{field.name}": getattr(getattr(self, name), field.name).contiguous()
            for name in SPLITS
            for field in fields(SpeechSplit)
        }

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], report: dict[str, Any] | None = None
    ) -> SpeechClients:
        """Inverse of `to_tensors`.

        Raises:
            ArtifactError: If a key is missing.
        """
        try:
            train, val, test = (
                SpeechSplit(**{field.name: tensors[f"{name}/{field.name}"] for field in fields(SpeechSplit)})
                for name in SPLITS
            )
        except KeyError as error:
            raise ArtifactError(f"Stored segments lack the tensor {error}. Build them again.") from error
        return cls(train, val, test, report or {})
