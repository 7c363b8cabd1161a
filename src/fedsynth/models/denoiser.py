"""The noise predictor ε_ψ(x_t, t, c) of FedDP-PALD Eq. (27), for latent vectors."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedsynth.models.inputs import (
    ModelInputError,
    require_floating,
    require_indices,
    require_positive,
    require_shape,
)


def sinusoidal_embedding(timestep: Int[Tensor, " b"], dim: int) -> Float[Tensor, "b dim"]:
    """Sines and cosines of the timestep at dim / 2 frequencies from 1 down to 1/10 000 (Vaswani et al. 2017).

    Columns are [cos, sin]; frequencies are 10 000^(-i / (dim / 2)), i = 0 … dim/2 - 1.
    """
    half = dim // 2
    exponents = torch.arange(half, device=timestep.device, dtype=torch.float32) / half
    angles = timestep.float().unsqueeze(-1) * torch.exp(-math.log(10_000) * exponents)  # [b, dim / 2]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class LatentDenoiser(nn.Module):
    """Residual multilayer perceptron predicting the noise ε in a noisy latent, conditioned on time and class.

    Each block adds W_2 SiLU(W_1 (LayerNorm(x) + condition)) to its input; all share the condition. The last
    layer starts at zero, so an untrained network predicts ε = 0, with loss 1 a dimension.

    Args:
        dim: Length of a latent.
        width: Hidden features.
        num_blocks: Residual blocks.
        time_embedding_dim: Length of the sinusoidal time embedding, even.
        num_classes: Classes; one more embedding, ``null_label``, stands for "no class".
    """

    def __init__(
        self,
        dim: int = 64,
        width: int = 256,
        num_blocks: int = 4,
        time_embedding_dim: int = 128,
        num_classes: int = 2,
    ) -> None:
        super().__init__()
        require_positive("dim, width, num_blocks and num_classes", dim, width, num_blocks, num_classes)
        if time_embedding_dim < 2 or time_embedding_dim % 2:
            raise ModelInputError(
                f"time_embedding_dim must be even and at least 2, got {time_embedding_dim}."
            )
        self.dim, self.num_classes = dim, num_classes
        self.null_label = num_classes
        self.time_embedding_dim = time_embedding_dim
        self.time_layer = nn.Linear(time_embedding_dim, width)
        self.class_embedding = nn.Embedding(num_classes + 1, width)
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, width))
        self.input_layer = nn.Linear(dim, width)
        self.blocks = nn.ModuleList(_ResidualBlock(width) for _ in range(num_blocks))
        self.output_layer = nn.Sequential(nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, dim))
        nn.init.zeros_(self.output_layer[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.output_layer[-1].bias)  # type: ignore[arg-type]

    def forward(
        self, x: Float[Tensor, "b d"], timestep: Int[Tensor, "*b"], label: Int[Tensor, " b"]
    ) -> Float[Tensor, "b d"]:
        """Predicted noise.

        Args:
            x: Noisy latents x_t.
            timestep: One a row, or a single one (no dimensions) for all rows, which is cheaper.
            label: Class of each row; ``null_label`` for none.

        Raises:
            ModelInputError: On wrong shapes or types, or (on CPU) labels outside [0, ``null_label``].
        """
        require_shape("x", x, None, self.dim)
        require_floating("x", x)
        require_shape("label", label, len(x))
        require_indices("label", label, self.num_classes + 1)
        if timestep.ndim:
            require_shape("timestep", timestep, len(x))
            condition = self._condition(timestep, label)
        else:  # one time for all rows: compute the condition once a class
            classes = torch.arange(self.num_classes + 1, device=x.device)
            condition = self._condition(timestep.expand(len(classes)), classes)[label]
        hidden = self.input_layer(x)
        for block in self.blocks:
            hidden = block(hidden, condition)
        return self.output_layer(hidden)

    def _condition(self, timestep: Int[Tensor, " n"], label: Int[Tensor, " n"]) -> Float[Tensor, "n w"]:
        time = sinusoidal_embedding(timestep, self.time_embedding_dim).to(self.time_layer.weight.dtype)
        return self.condition(self.time_layer(time) + self.class_embedding(label))


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "b w"], condition: Float[Tensor, "b w"]) -> Float[Tensor, "b w"]:
        return x + self.project(nn.functional.silu(self.expand(self.norm(x) + condition)))
