"""Layers that keep the magnitude of activations, EDM2 (Karras et al. 2024, Sects. 2.3 and 2.4), from its equations.

The magnitude of a tensor is the root of its mean square. Every layer returns magnitude 1 if its inputs have magnitude
1 and are uncorrelated; no normalization of activations and no bias is then needed.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedsynth.models.inputs import require_positive

SILU_MAGNITUDE = 0.596
"""√E[silu(z)²] for z ~ N(0, 1), rounded as in EDM2."""


def normalize_magnitude(
    x: Float[Tensor, "*shape"], dims: tuple[int, ...], epsilon: float = 1e-4
) -> Float[Tensor, "*shape"]:
    """x / (ε + root mean square of x over ``dims``), in float32 at least (EDM2's pixel norm over channels)."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    magnitude = wide.square().mean(dim=dims, keepdim=True).sqrt()
    return x / (epsilon + magnitude).to(x.dtype)


def mp_silu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """SiLU divided by its magnitude for normal inputs."""
    return functional.silu(x) / SILU_MAGNITUDE


def mp_sum(a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape"], share: float) -> Float[Tensor, "*shape"]:
    """((1 - t) a + t b) / √((1 - t)² + t²), with t = ``share`` the part of b."""
    return torch.lerp(a, b, share) / math.hypot(1 - share, share)


def mp_cat(
    a: Float[Tensor, "b m h w"], b: Float[Tensor, "b n h w"], share: float = 0.5
) -> Float[Tensor, "b m+n h w"]:
    """Channels of a and b behind each other, scaled so that they contribute (1 - t)² : t² whatever their numbers.

    √((m + n) / ((1 - t)² + t²)) · [(1 - t) / √m · a, t / √n · b].
    """
    m, n = a.shape[1], b.shape[1]
    scale = math.sqrt(m + n) / math.hypot(1 - share, share)
    return torch.cat([scale * (1 - share) / math.sqrt(m) * a, scale * share / math.sqrt(n) * b], dim=1)


class FourierFeatures(nn.Module):
    """√2 cos(2π (f_i x + φ_i)) with f_i ~ N(0, 1) and φ_i ~ U(0, 1), drawn once and stored as buffers.

    Their mean square over i is 1 on average. Of a scalar such as ln(σ) / 4.
    """

    frequency: Float[Tensor, " f"]
    phase: Float[Tensor, " f"]

    def __init__(self, num_features: int) -> None:
        super().__init__()
        require_positive("num_features", num_features)
        self.register_buffer("frequency", 2 * math.pi * torch.randn(num_features))
        self.register_buffer("phase", 2 * math.pi * torch.rand(num_features))

    def forward(self, x: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """The features, in the type of the buffers; angles are exact enough in float32 only."""
        angle = torch.outer(x.to(self.frequency.dtype), self.frequency) + self.phase
        return math.sqrt(2) * angle.cos()


class MPLinear(nn.Module):
    """y = gain · Ŵ x, every row of Ŵ (one output) of length 1; linear or a convolution, without bias.

    Rows are normalized in the forward pass, so gradients are perpendicular to them; in training mode the stored
    rows are also put back to magnitude 1 first ("forced weight normalization"), or their growth would lower the
    learning rate. The gain belongs to the caller.

    Args:
        channels_in: Input features or channels.
        channels_out: Outputs.
        kernel_size: Side of a square kernel; 0 for a linear layer.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int = 0) -> None:
        super().__init__()
        require_positive("channels_in and channels_out", channels_in, channels_out)
        kernel = (kernel_size, kernel_size) if kernel_size else ()
        self.weight = nn.Parameter(torch.randn(channels_out, channels_in, *kernel))

    def forward(self, x: Float[Tensor, "b c *hw"], gain: float | Tensor = 1.0) -> Float[Tensor, "b d *hw"]:
        """Outputs; the image keeps its size."""
        dims = tuple(range(1, self.weight.ndim))
        if self.training:
            with torch.no_grad():
                self.weight.copy_(normalize_magnitude(self.weight, dims))
        fan_in = self.weight[0].numel()
        weight = normalize_magnitude(self.weight, dims) * (gain / math.sqrt(fan_in))
        weight = weight.to(x.dtype)
        if weight.ndim == 2:
            return functional.linear(x, weight)
        return functional.conv2d(x, weight, padding=weight.shape[-1] // 2)


class NoiseUncertainty(nn.Module):
    """u(σ) of EDM2's loss (Sect. 2.2): one linear layer on Fourier features of ln(σ) / 4. Dropped after training.

    It starts at 0, that is, at the unweighted loss.
    """

    def __init__(self, num_features: int = 128) -> None:
        super().__init__()
        self.features = FourierFeatures(num_features)
        self.layer = nn.Linear(num_features, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, sigma: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """u of each row."""
        features = self.features(sigma.log() / 4) / math.sqrt(self.layer.in_features)
        return self.layer(features).squeeze(1)
