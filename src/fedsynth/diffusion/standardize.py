"""Standardization of latents before diffusion and its inverse afterwards: FedDP-PALD Eqs. (26) and (30).

Two kinds: along the latent dimensions, as the paper's equations read, or along the principal axes (whitening).
Latents of a trained classifier lie near a line: along the dimensions all coordinates of a standardized sample then
say the same, and the directions across the line, where a sample is told from a real one, are a few percent of it.
Whitened, every direction has the same weight in the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.diffusion.inputs import DiffusionInputError, check_latents


@dataclass(frozen=True, eq=False)
class LatentScaler:
    """Mean and standard deviation along each latent dimension, or along each column of ``basis``.

    Attributes:
        mean: Of the samples, in latent coordinates.
        std: Standard deviations, > 0.
        basis: Orthogonal matrix whose columns are the axes; None stands for the latent dimensions themselves.

    To keep the privacy of the released mixture, fit it on samples of that mixture, never on clients' latents.

    Raises:
        DiffusionInputError: If shapes differ, or a value is not finite, or a deviation is not positive.
    """

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]
    basis: Float[Tensor, "d d"] | None = None

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise DiffusionInputError(
                f"mean and std must be vectors of one length, "
                f"got {list(self.mean.shape)} and {list(self.std.shape)}."
            )
        if not (self.mean.isfinite().all() and self.std.isfinite().all() and (self.std > 0).all()):
            raise DiffusionInputError("mean must be finite and std positive and finite.")
        if self.basis is not None and not _is_orthogonal(self.basis, len(self.mean)):
            raise DiffusionInputError(
                f"basis must be an orthogonal matrix of {len(self.mean)} columns, got shape {list(self.basis.shape)}. "
                "Use LatentScaler.fit_whitening."
            )

    @classmethod
    def fit(cls, samples: Float[Tensor, "n d"]) -> LatentScaler:
        """Population moments of the samples, in float64; a constant dimension gets standard deviation 1.

        Raises:
            DiffusionInputError: If there are fewer than two samples, or one is not finite.
        """
        wide = _check_samples(samples)
        # fidelity: constant-latent-feature. Compared exactly: rounding may leave a constant a tiny deviation.
        is_constant = wide.amax(0) == wide.amin(0)
        return cls(wide.mean(0), torch.where(is_constant, 1.0, wide.std(0, correction=0)))

    @classmethod
    def fit_whitening(cls, samples: Float[Tensor, "n d"]) -> LatentScaler:
        """Principal axes of the samples, in float64, largest first, and their population standard deviations.

        Axes without variance (below a millionth of the largest) get standard deviation 1, so that they stay
        zero in both directions.

        Raises:
            DiffusionInputError: If there are fewer than two samples, or one is not finite.
        """
        wide = _check_samples(samples)
        mean = wide.mean(0)
        variance, axes = torch.linalg.eigh((wide - mean).mT @ (wide - mean) / len(wide))
        std = variance.clamp_min(0).sqrt().flip(0)
        # fidelity: latent-whitening
        return cls(mean, torch.where(std > 1e-6 * std.max(), std, 1.0), axes.flip(1).contiguous())

    def standardize(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """x_0 = (h - mean) / sd, the input of Eq. (26); whitened, x_0 = Bᵀ(h - mean) / sd."""
        self._check(latents)
        mean, std = self.mean.to(latents.device), self.std.to(latents.device)
        centered = latents - mean
        if self.basis is not None:
            centered = centered.to(self.basis.dtype) @ self.basis.to(latents.device)
        return (centered / std).to(latents.dtype)

    def restore(self, standardized: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Eq. (30): h = mean + sd ⊙ x̂_0; whitened, h = mean + B (sd ⊙ x̂_0)."""
        self._check(standardized)
        mean, std = self.mean.to(standardized.device), self.std.to(standardized.device)
        scaled = std * standardized
        if self.basis is not None:
            scaled = scaled.to(self.basis.dtype) @ self.basis.to(standardized.device).mT
        return (mean + scaled).to(standardized.dtype)

    def to_tensors(self) -> dict[str, Tensor]:
        """Mean and deviations, and the axes if there are any, for safetensors."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def _check(self, latents: Tensor) -> None:
        check_latents("latents", latents)
        if latents.shape[1] != len(self.mean):
            raise DiffusionInputError(
                f"latents must have {len(self.mean)} dimensions, got {latents.shape[1]}."
            )


def _check_samples(samples: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    check_latents("samples", samples)
    if len(samples) < 2 or not samples.isfinite().all():
        raise DiffusionInputError(f"samples must be at least two finite rows, got {len(samples)}.")
    return samples.double()


def _is_orthogonal(basis: Tensor, dim: int) -> bool:
    if tuple(basis.shape) != (dim, dim) or not bool(basis.isfinite().all()):
        return False
    identity = torch.eye(dim, dtype=torch.float64, device=basis.device)
    return bool(torch.allclose(basis.double().mT @ basis.double(), identity, atol=1e-5))
