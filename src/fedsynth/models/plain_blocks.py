"""Parts of the plain U-Net: ADM's blocks (Dhariwal & Nichol 2021) with the residual scaling of EDM's DDPM++.

Convolutions have biases, activations are normalized by groups, and the embedding scales and shifts them.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedsynth.models.inputs import ModelInputError
from fedsynth.models.magnitude_preserving import FourierFeatures
from fedsynth.models.unet_parts import BlockPlan, num_heads, resample, scaled_condition, split_heads


class PlainEmbedding(nn.Module):
    """SiLU(W_2 SiLU(W_1 fourier(c_noise)) + W_c √dim c); without a condition only the first term."""

    def __init__(self, num_features: int, embedding_dim: int, condition_dim: int) -> None:
        super().__init__()
        self.noise_layers = nn.Sequential(
            FourierFeatures(num_features),
            nn.Linear(num_features, embedding_dim),
            nn.SiLU(),
            nn.Linear(embedding_dim, embedding_dim),
        )
        # No bias: a condition of zeros then adds nothing, as no condition does.
        self.condition_layer = nn.Linear(condition_dim, embedding_dim, bias=False) if condition_dim else None

    def forward(
        self, noise: Float[Tensor, " b"], condition: Float[Tensor, "b c"] | None
    ) -> Float[Tensor, "b e"]:
        embedding = self.noise_layers(noise)
        if self.condition_layer is not None:
            vector = scaled_condition(condition, embedding, self.condition_layer.in_features)
            embedding = embedding + self.condition_layer(vector)
        return functional.silu(embedding)


class PlainBlock(nn.Module):
    """Residual block modulated by the embedding, with self-attention behind it if the plan says so.

    Sums are multiplied by √½, so that they keep their variance. The second convolution starts at zero.
    """

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.plan = plan
        self.norm_in = group_norm(plan.channels_in)
        self.first = nn.Conv2d(plan.channels_in, plan.channels_out, 3, padding=1)
        self.modulation = nn.Linear(plan.embedding_dim, 2 * plan.channels_out)
        self.norm_hidden = group_norm(plan.channels_out)
        self.dropout = nn.Dropout(plan.dropout)
        self.second = zeroed(nn.Conv2d(plan.channels_out, plan.channels_out, 3, padding=1))
        self.skip = (
            nn.Conv2d(plan.channels_in, plan.channels_out, 1)
            if plan.channels_in != plan.channels_out
            else None
        )
        self.attention = PlainAttention(plan.channels_out, plan.head_channels) if plan.attention else None

    def forward(
        self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d h w"]:
        hidden = self.first(resample(functional.silu(self.norm_in(x)), self.plan.resample))
        scale, shift = self.modulation(embedding)[:, :, None, None].chunk(2, dim=1)
        # The image comes first: torch gives the result the memory layout of the first operand.
        hidden = functional.silu(self.norm_hidden(hidden) * (scale + 1) + shift)
        hidden = self.second(self.dropout(hidden))
        x = resample(x, self.plan.resample)
        if self.skip is not None:
            x = self.skip(x)
        x = (x + hidden) * math.sqrt(0.5)
        return x if self.attention is None else self.attention(x)


class PlainAttention(nn.Module):
    """Self-attention over pixels, added to its input; it starts at zero."""

    def __init__(self, channels: int, head_channels: int) -> None:
        super().__init__()
        self.num_heads = num_heads(channels, head_channels)
        self.norm = group_norm(channels)
        self.queries_keys_values = nn.Conv2d(channels, 3 * channels, 1)
        self.output = zeroed(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        queries, keys, values = split_heads(self.queries_keys_values(self.norm(x)), self.num_heads)
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        return (x + self.output(mixed.transpose(2, 3).reshape(x.shape))) * math.sqrt(0.5)


class PlainStem(nn.Conv2d):
    """The first convolution."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, 3, padding=1)


class PlainHead(nn.Sequential):
    """Norm, SiLU and the last convolution, which starts at zero."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        last = zeroed(nn.Conv2d(channels_in, channels_out, 3, padding=1))
        super().__init__(group_norm(channels_in), nn.SiLU(), last)


def plain_join(x: Float[Tensor, "b m h w"], skip: Float[Tensor, "b n h w"]) -> Float[Tensor, "b m+n h w"]:
    """Trunk and skip connection behind each other."""
    return torch.cat([x, skip], dim=1)


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with at most 32 groups of at least 4 channels, as many as divide the channels evenly.

    Raises:
        ModelInputError: If there are fewer than 4 channels.
    """
    if channels < 4:
        raise ModelInputError(f"A plain U-Net needs at least 4 channels everywhere, got {channels}.")
    groups = next(groups for groups in range(min(32, channels // 4), 0, -1) if channels % groups == 0)
    return nn.GroupNorm(groups, channels)


def zeroed(layer: nn.Conv2d) -> nn.Conv2d:
    """The layer with weights and bias at zero."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
