"""The training loss of EDM (Karras et al. 2022) with the uncertainty weighting of EDM2 (Karras et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.diffusion.edm import (
    ConditionalDenoiser,
    check_latent_images,
    check_sigma,
    check_sigma_data,
    per_row,
)
from fedsynth.diffusion.inputs import DiffusionInputError

Uncertainty = Callable[[Float[Tensor, " b"]], Float[Tensor, " b"]]


@dataclass(frozen=True)
class NoiseLevelLaw:
    """Noise levels of training: ln σ ~ N(mean, std²), P_mean and P_std of EDM Table 1.

    EDM uses (-1.2, 1.2), EDM2 and the reference code of PSO-secure sharing (-0.4, 1.0).

    Raises:
        DiffusionInputError: If a value is not finite or the deviation is negative.
    """

    mean: float = -0.4
    std: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise DiffusionInputError(
                f"A law of ln(sigma) needs a finite mean and a deviation of at least 0, "
                f"got {self.mean} and {self.std}. EDM2 uses -0.4 and 1.0."
            )

    def draw(self, num_rows: int, generator: torch.Generator) -> Float[Tensor, " b"]:
        """Noise levels σ, in float64 on the generator's device."""
        z = torch.randn(num_rows, generator=generator, device=generator.device, dtype=torch.float64)
        return (self.mean + self.std * z).exp()


def loss_weight(sigma: Float[Tensor, "*b"], sigma_data: float = 0.5) -> Float[Tensor, "*b"]:
    """λ(σ) = (σ² + σ_d²) / (σ σ_d)² = 1 / c_out², EDM Table 1: F's error then counts 1 at every σ."""
    check_sigma_data(sigma_data)
    return (sigma.square() + sigma_data**2) / (sigma * sigma_data).square()


def weighted_errors(
    denoiser: ConditionalDenoiser,
    x0: Float[Tensor, "b c h w"],
    condition: Float[Tensor, "b e"] | None,
    sigma: Float[Tensor, " b"],
    noise: Float[Tensor, "b c h w"],
    sigma_data: float = 0.5,
) -> Float[Tensor, " b"]:
    """λ(σ) · mean over pixels of (D(x_0 + σ n; σ, condition) - x_0)², one number a row.

    The mean over pixels is taken where EDM writes the squared norm: only the scale differs, and 1 is then the
    error of the best linear denoiser whatever the size. Useful by itself for validation at fixed noise levels.

    Raises:
        DiffusionInputError: On wrong shapes or types.
    """
    # fidelity: edm-loss-mean
    check_latent_images("x0", x0)
    check_sigma(sigma, len(x0))
    if noise.shape != x0.shape:
        raise DiffusionInputError(f"noise must match x0 {list(x0.shape)}, got {list(noise.shape)}.")
    weight = loss_weight(sigma, sigma_data).to(x0.dtype)
    sigma = sigma.to(x0.dtype)
    denoised = denoiser(x0 + per_row(sigma) * noise, sigma, condition)
    return weight * (denoised - x0).square().mean(dim=(1, 2, 3))


def edm_loss(
    denoiser: ConditionalDenoiser,
    x0: Float[Tensor, "b c h w"],
    condition: Float[Tensor, "b e"] | None,
    *,
    law: NoiseLevelLaw,
    generator: torch.Generator,
    sigma_data: float = 0.5,
    condition_dropout: float = 0.0,
    uncertainty: Uncertainty | None = None,
) -> Float[Tensor, ""]:
    """One Monte Carlo estimate of the EDM loss E[λ(σ) ‖D(x_0 + σ n; σ, c) - x_0‖²], per pixel.

    With ``uncertainty`` u it becomes E[error / e^u(σ) + u(σ)] (EDM2, Sect. 2.2): the best u is ln of the mean
    error at σ, so that all noise levels pull equally at the weights; the values are then no longer comparable
    with those without u, and can be negative.

    Args:
        denoiser: D, e.g. ``EDMDenoiser``.
        x0: Latents of standard deviation ``sigma_data``.
        condition: One vector a row; None for an unconditional network.
        law: Law of σ.
        generator: Source of σ, n and the dropout. A CPU generator gives the same draws on every device.
        sigma_data: σ_d, the denoiser's own.
        condition_dropout: Share of rows whose condition is replaced by zeros, so that the same network learns
            the unconditional denoiser. 0 in the reference code, which trains a second network instead.
        uncertainty: u, trained together with the denoiser.

    Raises:
        DiffusionInputError: On wrong shapes or types, a dropout outside [0, 1], or one without a condition.
    """
    check_latent_images("x0", x0)
    condition = _drop_conditions(condition, len(x0), condition_dropout, generator)
    sigma = law.draw(len(x0), generator).to(x0.device)
    noise = torch.randn(x0.shape, generator=generator, device=generator.device, dtype=x0.dtype).to(x0.device)
    errors = weighted_errors(denoiser, x0, condition, sigma, noise, sigma_data)
    if uncertainty is None:
        return errors.mean()
    log_error = uncertainty(sigma.to(x0.dtype))
    if log_error.shape != errors.shape:
        raise DiffusionInputError(
            f"uncertainty must return one number a row, [{len(x0)}], got {list(log_error.shape)}."
        )
    return (errors / log_error.exp() + log_error).mean()


def _drop_conditions(
    condition: Tensor | None, num_rows: int, probability: float, generator: torch.Generator
) -> Tensor | None:
    """Conditions with some rows set to zero."""
    # fidelity: condition-dropout
    if not 0 <= probability <= 1:
        raise DiffusionInputError(
            f"condition_dropout must be in [0, 1], got {probability}. 0.15 works at 28 pixels."
        )
    if condition is None:
        if probability > 0:
            raise DiffusionInputError(
                f"condition_dropout is {probability} but there is no condition; set it to 0 for an "
                "unconditional network."
            )
        return None
    if condition.ndim != 2 or len(condition) != num_rows:
        raise DiffusionInputError(
            f"condition must hold one vector for each of {num_rows} rows, got {list(condition.shape)}."
        )
    if probability == 0:
        return condition
    draws = torch.rand(num_rows, generator=generator, device=generator.device)
    is_dropped = (draws < probability).to(condition.device)
    return condition.masked_fill(is_dropped.unsqueeze(1), 0.0)
