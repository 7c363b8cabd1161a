"""Standardization of latents before diffusion and its inverse afterwards: FedDP-PALD Eqs. (26) and (30)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.diffusion.inputs import DiffusionInputError, check_latents


@dataclass(frozen=True, eq=False)
class LatentScaler:
    """Mean and standard deviation of each latent dimension.

    To keep the privacy of the released mixture, fit it on samples of that mixture, never on clients' latents.

    Raises:
        DiffusionInputError: If shapes differ, or a value is not finite, or a deviation is not positive.
    """

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise DiffusionInputError(
                f"mean and std must be vectors of one length, "
                f"got {list(self.mean.shape)} and {list(self.std.shape)}."
            )
        if not (self.mean.isfinite().all() and self.std.isfinite().all() and (self.std > 0).all()):
            raise DiffusionInputError("mean must be finite and std positive and finite.")

    @classmethod
    def fit(cls, samples: Float[Tensor, "n d"]) -> LatentScaler:
        """Population moments of the samples, in float64; a constant dimension gets standard deviation 1.

        Raises:
            DiffusionInputError: If there are fewer than two samples, or one is not finite.
        """
        check_latents("samples", samples)
        if len(samples) < 2 or not samples.isfinite().all():
            raise DiffusionInputError(f"samples must be at least two finite rows, got {len(samples)}.")
        wide = samples.double()
        # fidelity: constant-latent-feature. Compared exactly: rounding may leave a constant a tiny deviation.
        is_constant = wide.amax(0) == wide.amin(0)
        return cls(wide.mean(0), torch.where(is_constant, 1.0, wide.std(0, correction=0)))

    def standardize(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """x_0 = (h - mean) / sd, the input of Eq. (26)."""
        self._check(latents)
        return ((latents - self.mean.to(latents.device)) / self.std.to(latents.device)).to(latents.dtype)

    def restore(self, standardized: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Eq. (30): h = mean + sd ⊙ x̂_0."""
        self._check(standardized)
        mean, std = self.mean.to(standardized.device), self.std.to(standardized.device)
        return (mean + std * standardized).to(standardized.dtype)

    def _check(self, latents: Tensor) -> None:
        check_latents("latents", latents)
        if latents.shape[1] != len(self.mean):
            raise DiffusionInputError(
                f"latents must have {len(self.mean)} dimensions, got {latents.shape[1]}."
            )
