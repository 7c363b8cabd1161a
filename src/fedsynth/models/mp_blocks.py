"""Parts of the magnitude-preserving U-Net, EDM2 configuration G (Karras et al. 2024, Fig. 21), from its equations."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedsynth.models.magnitude_preserving import (
    FourierFeatures,
    MPLinear,
    mp_cat,
    mp_silu,
    mp_sum,
    normalize_magnitude,
)
from fedsynth.models.unet_parts import BlockPlan, num_heads, resample, scaled_condition, split_heads

RESIDUAL_SHARE = 0.3
"""Part of a residual branch in the sum with its trunk (EDM2's t for blocks and attention)."""
ACTIVATION_LIMIT = 256.0


class MPEmbedding(nn.Module):
    """mp_silu(mp_sum(W_σ fourier(c_noise), W_c √dim c, ½)); without a condition only the first."""

    def __init__(self, num_features: int, embedding_dim: int, condition_dim: int) -> None:
        super().__init__()
        self.features = FourierFeatures(num_features)
        self.noise_layer = MPLinear(num_features, embedding_dim)
        self.condition_layer = MPLinear(condition_dim, embedding_dim) if condition_dim else None

    def forward(
        self, noise: Float[Tensor, " b"], condition: Float[Tensor, "b c"] | None
    ) -> Float[Tensor, "b e"]:
        embedding = self.noise_layer(self.features(noise))
        if self.condition_layer is not None:
            vector = scaled_condition(condition, embedding, self.condition_layer.weight.shape[1])
            embedding = mp_sum(embedding, self.condition_layer(vector), 0.5)
        return mp_silu(embedding)


class MPStem(nn.Module):
    """The first convolution; a channel of ones replaces the biases that no layer has."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.convolution = MPLinear(channels_in + 1, channels_out, 3)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        return self.convolution(torch.cat([x, torch.ones_like(x[:, :1])], dim=1))


class MPBlock(nn.Module):
    """Residual block modulated by the embedding, with self-attention behind it if the plan says so."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.plan = plan
        inner = plan.channels_out if plan.is_encoder else plan.channels_in
        self.skip = (
            MPLinear(plan.channels_in, plan.channels_out, 1)
            if plan.channels_in != plan.channels_out
            else None
        )
        self.first = MPLinear(inner, plan.channels_out, 3)
        self.modulation = MPLinear(plan.embedding_dim, plan.channels_out)
        self.modulation_gain = nn.Parameter(torch.zeros(()))
        self.dropout = nn.Dropout(plan.dropout)
        self.second = MPLinear(plan.channels_out, plan.channels_out, 3)
        self.attention = MPAttention(plan.channels_out, plan.head_channels) if plan.attention else None

    def forward(
        self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d h w"]:
        x = resample(x, self.plan.resample)
        if self.plan.is_encoder:  # the trunk is normalized where it would otherwise accumulate
            x = normalize_magnitude(self._skipped(x), dims=(1,))
        scale = self.modulation(embedding, gain=self.modulation_gain) + 1
        hidden = mp_silu(self.first(mp_silu(x)) * scale[:, :, None, None])
        hidden = self.second(self.dropout(hidden))
        x = mp_sum(x if self.plan.is_encoder else self._skipped(x), hidden, RESIDUAL_SHARE)
        if self.attention is not None:
            x = self.attention(x)
        return x.clamp(-ACTIVATION_LIMIT, ACTIVATION_LIMIT)

    def _skipped(self, x: Tensor) -> Tensor:
        return x if self.skip is None else self.skip(x)


class MPAttention(nn.Module):
    """Self-attention over pixels with queries, keys and values of magnitude 1 (cosine attention)."""

    def __init__(self, channels: int, head_channels: int) -> None:
        super().__init__()
        self.num_heads = num_heads(channels, head_channels)
        self.queries_keys_values = MPLinear(channels, 3 * channels, 1)
        self.output = MPLinear(channels, channels, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        heads = split_heads(self.queries_keys_values(x), self.num_heads)
        queries, keys, values = normalize_magnitude(heads, dims=(-1,))
        mixed = functional.scaled_dot_product_attention(queries, keys, values)  # scale 1 / √(head channels)
        mixed = mixed.transpose(2, 3).reshape(x.shape)
        return mp_sum(x, self.output(mixed), RESIDUAL_SHARE)


class MPHead(nn.Module):
    """The last convolution, with a gain that starts at 0."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.convolution = MPLinear(channels_in, channels_out, 3)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        return self.convolution(x, gain=self.gain)


def mp_join(x: Float[Tensor, "b m h w"], skip: Float[Tensor, "b n h w"]) -> Float[Tensor, "b m+n h w"]:
    """Trunk and skip connection in equal parts."""
    return mp_cat(x, skip, 0.5)
