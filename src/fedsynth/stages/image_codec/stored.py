"""The codec as an artifact holds it: moments of its latents and, of an autoencoder, all weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsynth.data.image_codec import ImageCodec, LatentStatistics, PixelUnshuffle, StandardizedCodec
from fedsynth.models.autoencoder import Autoencoder, AutoencoderCodec
from fedsynth.pipeline.artifacts import Artifact

CODEC_FILE, LATENTS_FILE = "codec.safetensors", "latents.safetensors"
PREFIX = "autoencoder."


def open_codec(artifact: Artifact, device: str | torch.device = "cpu") -> StandardizedCodec:
    """The codec of a stage ``image_codec``, whose latents are standardized on its training images.

    Args:
        artifact: Of the stage.
        device: Where an autoencoder computes.

    Raises:
        ArtifactError: If the artifact holds no codec.
    """
    stored, notes = artifact.load(CODEC_FILE), artifact.manifest["notes"]
    statistics = LatentStatistics(stored.pop("mean"), stored.pop("std"))
    return StandardizedCodec(_inner(notes, stored, device), statistics, float(notes["sigma_data"]))


def codec_notes(codec: ImageCodec) -> dict[str, Any]:
    """What ``open_codec`` needs besides tensors: the codec's shape and options, and an autoencoder's config."""
    if isinstance(codec, PixelUnshuffle):
        own: dict[str, Any] = {"factor": codec.factor}
        shape = codec.image_shape
    elif isinstance(codec, AutoencoderCodec):
        shape = codec.image_shape
        # Only what the constructor takes: the rest, such as where it was loaded from, is about this machine.
        config = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in codec.autoencoder.config.items()
            if not name.startswith("_")
        }
        own = {"autoencoder": config, "pixel_range": codec.pixel_range, "posterior": codec.posterior}
    else:
        raise TypeError(f"A codec of type {type(codec).__name__} cannot be stored.")
    return {"codec_image_shape": list(shape), "latent_shape": list(codec.latent_shape), **own}


def codec_tensors(codec: ImageCodec) -> dict[str, Tensor]:
    """The weights of an autoencoder; nothing for an exact codec."""
    if not isinstance(codec, AutoencoderCodec):
        return {}
    return {f"{PREFIX}{name}": value for name, value in codec.autoencoder.state_dict().items()}


def _inner(notes: Mapping[str, Any], stored: Mapping[str, Tensor], device: str | torch.device) -> ImageCodec:
    channels, height, width = notes["codec_image_shape"]
    shape = (channels, height, width)
    if "factor" in notes:
        return PixelUnshuffle(shape, notes["factor"])
    from diffusers import AutoencoderKL

    autoencoder: Autoencoder = AutoencoderKL(**notes["autoencoder"])
    autoencoder.load_state_dict({name.removeprefix(PREFIX): value for name, value in stored.items()})
    return AutoencoderCodec(autoencoder.to(device), shape, notes["pixel_range"], notes["posterior"])
