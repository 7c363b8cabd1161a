"""Encoding many images piece by piece, so that a killed run goes on with what it had finished."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedsynth.models.image_encoder import ImageFeatures
from fedsynth.pipeline.stage import StageContext
from fedsynth.stages.out_of_memory import with_smaller_batches

log = logging.getLogger(__name__)
#: Images between two looks at the disk: a killed run loses no more than these.
PIECE = 4096


def encode_pieces(
    image: UInt8[Tensor, "n c h w"], encoder: ImageFeatures, batch_size: int, name: str, context: StageContext
) -> tuple[Float[Tensor, "n d"], int]:
    """Features of images in their order, and the batch size that fitted into memory.

    Args:
        image: Gray levels.
        encoder: What encodes them.
        batch_size: Images at once, to begin with.
        name: Of these images, unique within the stage.
        context: Finished pieces lie in its scratch folder, which belongs to one key.

    Raises:
        ConfigError: If a single image does not fit into memory.
    """
    parts = []
    for number, piece in enumerate(image.split(PIECE)):
        file = context.scratch / f"features-{name}-{number:05d}.safetensors"
        feature = _finished(file)
        if feature is None:
            feature, batch_size = _encode(piece, encoder, batch_size, f"stages.{context.name}.batch_size")
            partial = file.with_suffix(".partial")
            save_file({"feature": feature.contiguous()}, partial)
            os.replace(partial, file)
        parts.append(feature)
    return torch.cat(parts), batch_size


def _finished(file: Path) -> Tensor | None:
    """The features a killed run left, if they are whole."""
    if not file.is_file():
        return None
    try:
        return load_file(file)["feature"]
    except (SafetensorError, KeyError):
        log.warning("%s cannot be read: these features are computed again.", file)
        return None


def _encode(image: Tensor, encoder: ImageFeatures, batch_size: int, key: str) -> tuple[Tensor, int]:
    return with_smaller_batches(lambda size: encoder.features(image, size), batch_size, key)
