"""The classifier of synthetic latents in FedDP-PALD's train-on-synthetic, test-on-real evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError, require_floating, require_positive, require_shape


class LatentClassifier(nn.Module):
    """The multilayer perceptron F of FedDP-PALD Eq. (32): q = sigmoid(F(h)), 64 → 192 → 96 → 1.

    Latents are standardized first, by buffers that travel with the weights; they are the identity until
    ``set_standardization`` is called with the statistics of the *training* latents.

    Args:
        dim: Length of h.
        hidden: Widths of the hidden layers, each followed by ReLU and dropout.
        dropout: Probability, in [0, 1).
    """

    input_mean: Float[Tensor, " d"]
    input_std: Float[Tensor, " d"]

    def __init__(self, dim: int = 64, hidden: Sequence[int] = (192, 96), dropout: float = 0.1) -> None:
        super().__init__()
        require_positive("dim", dim)
        require_positive("hidden", *hidden)
        if not 0 <= dropout < 1:
            raise ModelInputError(f"dropout must be in [0, 1), got {dropout}. Typical: 0.1.")
        self.dim = dim
        self.register_buffer("input_mean", torch.zeros(dim))
        self.register_buffer("input_std", torch.ones(dim))
        layers: list[nn.Module] = []
        for width_in, width_out in zip((dim, *hidden), hidden, strict=False):
            layers += [nn.Linear(width_in, width_out), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], 1))

    def set_standardization(self, mean: Float[Tensor, " d"], std: Float[Tensor, " d"]) -> None:
        """Fix the standardization h ↦ (h - mean) / std.

        Raises:
            ModelInputError: If shapes are not [dim], a value is not finite, or a deviation not positive.
        """
        require_shape("mean", mean, self.dim)
        require_shape("std", std, self.dim)
        if not (mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
            raise ModelInputError(
                "mean must be finite and std positive and finite; give constant features std 1."
            )
        self.input_mean.copy_(mean)
        self.input_std.copy_(std)

    def forward(self, latent: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """Logits F(h) of the positive class."""
        require_shape("latent", latent, None, self.dim)
        require_floating("latent", latent)
        return self.layers((latent - self.input_mean) / self.input_std).squeeze(1)
