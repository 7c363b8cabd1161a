"""What the plain and the magnitude-preserving U-Net share: the plan of a block, resampling, heads, conditions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fedsynth.models.inputs import ModelInputError, require_floating, require_shape

Resampling = Literal["keep", "down", "up"]


@dataclass(frozen=True)
class BlockPlan:
    """One residual block of a U-Net: its sizes and what it does to the image."""

    channels_in: int
    channels_out: int
    embedding_dim: int
    is_encoder: bool
    resample: Resampling = "keep"
    attention: bool = False
    head_channels: int = 64
    dropout: float = 0.0


def resample(x: Float[Tensor, "b c h w"], how: Resampling) -> Float[Tensor, "b c h2 w2"]:
    """Half the size by the mean of 2 × 2 pixels, twice the size by repeating them, or the image itself."""
    if how == "down":
        return functional.avg_pool2d(x, 2)
    if how == "up":
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")
    return x


def num_heads(channels: int, head_channels: int) -> int:
    """Attention heads of about ``head_channels`` channels.

    Raises:
        ModelInputError: If the channels do not divide evenly.
    """
    heads = max(1, channels // head_channels)
    if channels % heads:
        raise ModelInputError(
            f"{channels} channels cannot be split into {heads} attention heads; choose channels that are a "
            f"multiple of head_channels, {head_channels}."
        )
    return heads


def split_heads(x: Float[Tensor, "b 3*c h w"], heads: int) -> Float[Tensor, "3 b heads hw d"]:
    """Queries, keys and values, pixels as the sequence."""
    rows, channels, height, width = x.shape
    parts = x.reshape(rows, 3, heads, channels // (3 * heads), height * width)
    return parts.permute(1, 0, 2, 4, 3)


def scaled_condition(
    condition: Float[Tensor, "b c"] | None, like: Float[Tensor, "b e"], dim: int
) -> Float[Tensor, "b c"]:
    """√dim · condition: of a unit vector one of magnitude 1 (EDM2's label path). None stands for zeros."""
    if condition is None:
        return torch.zeros(len(like), dim, dtype=like.dtype, device=like.device)
    require_shape("condition", condition, len(like), dim)
    require_floating("condition", condition)
    return math.sqrt(dim) * condition.to(like.dtype)
