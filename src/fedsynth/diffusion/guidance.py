"""Classifier-free guidance, FedDP-PALD Eq. (28)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.diffusion.inputs import Denoiser, DiffusionInputError, null_label


def guide(
    unconditional: Float[Tensor, "b d"], conditional: Float[Tensor, "b d"], scale: float
) -> Float[Tensor, "b d"]:
    """Guided noise, FedDP-PALD Eq. (28): ε̂ = ε_u + s (ε_c - ε_u).

    s = 0 ignores the class, s = 1 is the plain conditional prediction, s > 1 exaggerates the class.
    Ho & Salimans (2022) count from there: their w is s - 1.
    """
    return unconditional + scale * (conditional - unconditional)


def guided_noise(
    denoiser: Denoiser,
    x: Float[Tensor, "b d"],
    timestep: Int[Tensor, "*b"],
    label: Int[Tensor, " b"],
    guidance_scale: float,
) -> Float[Tensor, "b d"]:
    """The denoiser's guided prediction; at s = 0 and s = 1 only one of the two predictions is computed.

    Otherwise the denoiser is called twice rather than once with a doubled batch, which is slower on CPU.

    Raises:
        DiffusionInputError: If the scale is negative or not finite.
    """
    check_guidance_scale(guidance_scale)
    if guidance_scale == 1:
        return denoiser(x, timestep, label)
    unconditional = denoiser(x, timestep, torch.full_like(label, null_label(denoiser)))
    if guidance_scale == 0:
        return unconditional
    return guide(unconditional, denoiser(x, timestep, label), guidance_scale)


def check_guidance_scale(guidance_scale: float) -> None:
    """Refuse scales that push away from the class or are not numbers."""
    if not (math.isfinite(guidance_scale) and guidance_scale >= 0):
        raise DiffusionInputError(
            f"guidance_scale must be finite and at least 0, got {guidance_scale}. 1 is unguided; typical: 2."
        )
