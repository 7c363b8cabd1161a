"""Segments of participants on disk, so that the large openSMILE files are parsed once."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsynth.data.edaic.segments import Segment

logger = logging.getLogger(__name__)


class SegmentCache:
    """Files ``<name>.safetensors``, complete or not there; a damaged one is reported and made anew.

    Args:
        folder: Made when needed; None keeps and finds nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._said: set[str] = set()

    def load(self, name: str) -> tuple[list[Segment], int] | None:
        """What `store` was given under this name; None if it is not there or damaged."""
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                digest = (file.metadata() or {}).get("sha256")
            if digest != _digest(tensors):
                raise ValueError("its digest differs")
            return _unpacked(tensors), int(tensors["left_out_rows"])
        except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
            self._warn("load", f"{path} is damaged ({error}): the corpus files are parsed again.")
            return None

    def store(self, name: str, segments: Sequence[Segment], left_out_rows: int) -> None:
        """Keep segments of one participant; a disk that cannot take them is reported, not an error."""
        path = self._path(name)
        if path is None:
            return
        tensors = {**_packed(segments), "left_out_rows": torch.tensor(left_out_rows)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".segments-", dir=path.parent)
            os.close(handle)
            try:
                save_file(tensors, temporary, metadata={"sha256": _digest(tensors)})
                os.replace(temporary, path)  # two runs write the same content: whoever comes last wins
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except (OSError, SafetensorError) as error:
            self._warn("store", f"Cannot keep parsed features in {path.parent}: {error}.")

    def _warn(self, kind: str, message: str) -> None:
        """Once for each kind: what befalls one file of a cache mostly befalls them all."""
        if kind not in self._said:
            logger.warning("%s Further ones are not reported.", message)
        self._said.add(kind)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"


def _packed(segments: Sequence[Segment]) -> dict[str, Tensor]:
    return {
        "audio": torch.cat([segment.audio for segment in segments]).contiguous(),
        "text": torch.cat([segment.text for segment in segments]).contiguous(),
        "audio_length": torch.tensor([len(segment.audio) for segment in segments]),
        "text_length": torch.tensor([len(segment.text) for segment in segments]),
        "times": torch.tensor([[s.start, s.end] for s in segments], dtype=torch.float64),
    }


def _unpacked(tensors: dict[str, Tensor]) -> list[Segment]:
    audio = tensors["audio"].split(tensors["audio_length"].tolist())
    text = tensors["text"].split(tensors["text_length"].tolist())
    times = tensors["times"].tolist()
    return [Segment(a, t, start, end) for a, t, (start, end) in zip(audio, text, times, strict=True)]


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
