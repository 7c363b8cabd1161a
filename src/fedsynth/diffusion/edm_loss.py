"""The training loss of EDM (Karras et al. 2022) with the uncertainty weighting of EDM2 (Karras et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
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


@dataclass(frozen=True, eq=False)
class NoiseDraws:
    """All that a training step draws, row by row of its latents.

    Drawn for a whole step and cut by ``rows``, the loss is the same whatever part of the step fits into memory.

    Attributes:
        sigma: Noise levels, in float64.
        noise: Standard normal, of the shape and type of the latents.
        is_dropped: Whether the row's condition is replaced by zeros; None drops none.
    """

    sigma: Float[Tensor, " b"]
    noise: Float[Tensor, "b c h w"]
    is_dropped: Bool[Tensor, " b"] | None

    def rows(self, start: int, num: int) -> NoiseDraws:
        """The draws of ``num`` rows from ``start`` on."""
        part = slice(start, start + num)
        is_dropped = None if self.is_dropped is None else self.is_dropped[part]
        return NoiseDraws(self.sigma[part], self.noise[part], is_dropped)


def draw_noise(
    shape: Sequence[int],
    *,
    law: NoiseLevelLaw,
    generator: torch.Generator,
    condition_dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> NoiseDraws:
    """σ, n and the dropout of as many rows as ``shape`` has, on the generator's device.

    Args:
        shape: Of the latents, [b, c, h, w].
        law: Law of σ.
        generator: Source of all draws. A CPU generator gives the same ones for every device.
        condition_dropout: Share of rows whose condition is replaced by zeros, so that the same network learns
            the unconditional denoiser. 0 in the reference code, which trains a second network instead.
        dtype: Of the noise.

    Raises:
        DiffusionInputError: If the dropout is outside [0, 1].
    """
    # fidelity: condition-dropout
    if not 0 <= condition_dropout <= 1:
        raise DiffusionInputError(
            f"condition_dropout must be in [0, 1], got {condition_dropout}. 0.15 works at 28 pixels."
        )
    device, is_dropped = generator.device, None
    if condition_dropout > 0:
        is_dropped = torch.rand(shape[0], generator=generator, device=device) < condition_dropout
    sigma = law.draw(shape[0], generator)
    noise = torch.randn(tuple(shape), generator=generator, device=device, dtype=dtype)
    return NoiseDraws(sigma, noise, is_dropped)


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
    """``edm_loss_of_draws`` with draws of its own, see ``draw_noise``.

    Raises:
        DiffusionInputError: On wrong shapes or types, a dropout outside [0, 1], or one without a condition.
    """
    check_latent_images("x0", x0)
    draws = draw_noise(
        x0.shape, law=law, generator=generator, condition_dropout=condition_dropout, dtype=x0.dtype
    )
    return edm_loss_of_draws(
        denoiser, x0, condition, draws=draws, sigma_data=sigma_data, uncertainty=uncertainty
    )


def edm_loss_of_draws(
    denoiser: ConditionalDenoiser,
    x0: Float[Tensor, "b c h w"],
    condition: Float[Tensor, "b e"] | None,
    *,
    draws: NoiseDraws,
    sigma_data: float = 0.5,
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
        draws: σ, n and the dropout of the rows, moved to where ``x0`` is.
        sigma_data: σ_d, the denoiser's own.
        uncertainty: u, trained together with the denoiser.

    Raises:
        DiffusionInputError: On wrong shapes or types, or a dropout without a condition.
    """
    check_latent_images("x0", x0)
    condition = _drop_conditions(condition, len(x0), draws.is_dropped)
    sigma, noise = draws.sigma.to(x0.device), draws.noise.to(x0.device)
    errors = weighted_errors(denoiser, x0, condition, sigma, noise, sigma_data)
    if uncertainty is None:
        return errors.mean()
    log_error = uncertainty(sigma.to(x0.dtype))
    if log_error.shape != errors.shape:
        raise DiffusionInputError(
            f"uncertainty must return one number a row, [{len(x0)}], got {list(log_error.shape)}."
        )
    return (errors / log_error.exp() + log_error).mean()


def _drop_conditions(condition: Tensor | None, num_rows: int, is_dropped: Tensor | None) -> Tensor | None:
    """Conditions with some rows set to zero."""
    if condition is None:
        if is_dropped is not None:
            raise DiffusionInputError(
                "condition_dropout is above 0 but there is no condition; set it to 0 for an unconditional network."
            )
        return None
    if condition.ndim != 2 or len(condition) != num_rows:
        raise DiffusionInputError(
            f"condition must hold one vector for each of {num_rows} rows, got {list(condition.shape)}."
        )
    if is_dropped is None:
        return condition
    return condition.masked_fill(is_dropped.to(condition.device).unsqueeze(1), 0.0)
