"""Solvers of EDM's probability-flow ODE dx/dσ = (x - D(x; σ)) / σ, from noise to images.

| name | order | denoiser calls for N levels | paper |
|---|---|---|---|
| euler | 1 | N | EDM (Karras et al. 2022); the same as DDIM (Song et al. 2021) |
| heun | 2 | 2N - 1 | EDM Algorithm 1 |
| dpmpp_2m | 2 | N | DPM-Solver++(2M), Lu et al. 2022, Algorithm 2 |

All are deterministic: the only randomness is the noise they start from. Calls include the final denoise step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.diffusion.edm import Denoise, check_latent_images
from fedsynth.diffusion.inputs import DiffusionInputError

SamplerKind = Literal["euler", "heun", "dpmpp_2m"]
Progress = Callable[[int, int], None]
Tick = Callable[[], None]


@dataclass(frozen=True)
class SamplerSettings:
    """Which solver visits which noise levels.

    Attributes:
        kind: The solver.
        num_steps: N, noise levels visited, the last one being ``sigma_min``.
        sigma_min: Smallest level. With a final denoise step it decides how much of the finest detail comes from
            the network's weakest levels: 0.06 is best for briefly trained networks at 28 pixels.
        sigma_max: Largest level, where sampling starts from N(0, σ_max²).
        rho: Bend of the schedule; 7 puts most levels near ``sigma_min``, 1 spaces them evenly.
        final_denoise: Whether to return D(x; σ_min) at the end (σ = 0, EDM Eq. 5) instead of the image that
            still carries noise of deviation σ_min.

    Raises:
        DiffusionInputError: On an unknown solver, fewer than two steps, or levels out of order.
    """

    kind: SamplerKind = "heun"
    num_steps: int = 32
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    final_denoise: bool = True

    def __post_init__(self) -> None:
        if self.kind not in SOLVERS:
            raise DiffusionInputError(f"kind must be one of {', '.join(SOLVERS)}, got {self.kind!r}.")
        _check_levels(self.num_steps, self.sigma_min, self.sigma_max, self.rho)

    @property
    def levels(self) -> list[float]:
        """σ_0 > … > σ_(N-1), and 0 if there is a final denoise step."""
        levels = noise_levels(self.num_steps, self.sigma_min, self.sigma_max, self.rho)
        return [*levels, 0.0] if self.final_denoise else levels

    @property
    def num_calls(self) -> int:
        """Denoiser calls for one image, guidance not counted."""
        return (self.num_steps - 1) * (2 if self.kind == "heun" else 1) + self.final_denoise


def noise_levels(num_steps: int, sigma_min: float, sigma_max: float, rho: float = 7.0) -> list[float]:
    """σ_i = (σ_max^(1/ρ) + i/(N-1) (σ_min^(1/ρ) - σ_max^(1/ρ)))^ρ, i = 0 … N-1, EDM Eq. (5) without the last 0.

    Raises:
        DiffusionInputError: If there are fewer than two steps or the levels are out of order.
    """
    _check_levels(num_steps, sigma_min, sigma_max, rho)
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    inner = [(high + i / (num_steps - 1) * (low - high)) ** rho for i in range(1, num_steps - 1)]
    return [sigma_max, *inner, sigma_min]  # the ends exactly, whatever the powers round to


def euler(
    denoise: Denoise, x: Float[Tensor, "b c h w"], levels: Sequence[float], tick: Tick = lambda: None
) -> Float[Tensor, "b c h w"]:
    """x ← D + σ'/σ (x - D) from level to level: Euler's method in σ, which is DDIM without added noise.

    Args:
        denoise: D with its condition bound.
        x: Start, at noise level ``levels[0]``.
        levels: Falling noise levels; only the last may be 0.
        tick: Called after each step.
    """
    for sigma, next_sigma in pairwise(levels):
        denoised = denoise(x, _as_tensor(sigma, x))
        x = torch.lerp(denoised, x, next_sigma / sigma)
        tick()
    return x


def heun(
    denoise: Denoise, x: Float[Tensor, "b c h w"], levels: Sequence[float], tick: Tick = lambda: None
) -> Float[Tensor, "b c h w"]:
    """EDM Algorithm 1: an Euler step, then again with the mean of the slopes at both ends; Euler to σ = 0.

    Arguments as for ``euler``.
    """
    for sigma, next_sigma in pairwise(levels):
        denoised = denoise(x, _as_tensor(sigma, x))
        euler_x = torch.lerp(denoised, x, next_sigma / sigma)
        if next_sigma > 0:
            slope = (x - denoised) / sigma
            next_slope = (euler_x - denoise(euler_x, _as_tensor(next_sigma, x))) / next_sigma
            euler_x = x + (next_sigma - sigma) / 2 * (slope + next_slope)
        x = euler_x
        tick()
    return x


def dpmpp_2m(
    denoise: Denoise, x: Float[Tensor, "b c h w"], levels: Sequence[float], tick: Tick = lambda: None
) -> Float[Tensor, "b c h w"]:
    """DPM-Solver++(2M), Lu et al. (2022) Algorithm 2, with λ = -ln σ and α = 1.

    A step of length h = ln(σ/σ') is x ← σ'/σ x + (1 - σ'/σ) D̃, where D̃ = D + (h / 2h_before)(D - D_before)
    extrapolates to its middle. The first step has no predecessor; the one to σ = 0 returns D. Arguments as for
    ``euler``.
    """
    before: Tensor | None = None
    step_before = math.inf
    for sigma, next_sigma in pairwise(levels):
        denoised = denoise(x, _as_tensor(sigma, x))
        target = denoised
        if next_sigma > 0:
            step = math.log(sigma / next_sigma)
            if before is not None:
                target = denoised + step / (2 * step_before) * (denoised - before)
            step_before = step
        x = torch.lerp(target, x, next_sigma / sigma)
        before = denoised
        tick()
    return x


SOLVERS: dict[str, Callable[[Denoise, Tensor, Sequence[float], Tick], Tensor]] = {
    "euler": euler,
    "heun": heun,
    "dpmpp_2m": dpmpp_2m,
}


def sample_latents(
    bind: Callable[[slice], Denoise],
    num_rows: int,
    latent_shape: tuple[int, int, int],
    settings: SamplerSettings,
    *,
    generator: torch.Generator,
    batch_size: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Float[Tensor, "n c h w"]:
    """Latents drawn by ``denoise_latents`` from noise of the generator.

    All noise is drawn before the first step, so the result does not depend on ``batch_size`` (but for the last
    bits, as matrix products of other sizes add up in another order).

    Args:
        bind: The denoiser of some rows, with their conditions: ``bind(slice(0, 128))``.
        num_rows: How many.
        latent_shape: Channels, height, width.
        settings: Solver and noise levels.
        generator: Source of the noise; its device may differ from ``device``.
        batch_size: Rows denoised together; 128 to 256 saturate a CPU.
        device: Where to sample.
        dtype: Of the samples; the denoiser must accept it.
        progress: Called after each step with (rows × steps done, rows × steps in all).

    Raises:
        DiffusionInputError: On impossible sizes.
    """
    if num_rows < 0 or len(latent_shape) != 3 or min(latent_shape) < 1:
        raise DiffusionInputError(
            f"num_rows must be at least 0 and latent_shape three positive sizes, "
            f"got {num_rows} and {latent_shape}."
        )
    noise = torch.randn(num_rows, *latent_shape, generator=generator, device=generator.device, dtype=dtype)
    return denoise_latents(bind, noise.to(device), settings, batch_size=batch_size, progress=progress)


@torch.no_grad()
def denoise_latents(
    bind: Callable[[slice], Denoise],
    noise: Float[Tensor, "n c h w"],
    settings: SamplerSettings,
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> Float[Tensor, "n c h w"]:
    """The deterministic map from standard normal noise to latents, row by row.

    Arguments and errors are those of ``sample_latents``; ``noise`` has standard deviation 1 and is not changed.
    The denoiser's train/eval mode is left alone.
    """
    check_latent_images("noise", noise)
    if batch_size < 1:
        raise DiffusionInputError(f"batch_size must be at least 1, got {batch_size}. Typical: 128.")
    levels, solver = settings.levels, SOLVERS[settings.kind]
    total, done = len(noise) * (len(levels) - 1), 0
    samples = torch.empty_like(noise)
    for start in range(0, len(noise), batch_size):
        rows = slice(start, min(start + batch_size, len(noise)))
        size = rows.stop - rows.start

        def tick(size: int = size) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, total)

        samples[rows] = solver(bind(rows), levels[0] * noise[rows], levels, tick)
    return samples


def _as_tensor(sigma: float, like: Tensor) -> Float[Tensor, ""]:
    # On the CPU: guidance intervals read the value, which must not make a GPU wait.
    return torch.tensor(sigma, dtype=like.dtype)


def _check_levels(num_steps: int, sigma_min: float, sigma_max: float, rho: float) -> None:
    if num_steps < 2:
        raise DiffusionInputError(f"num_steps must be at least 2, got {num_steps}. Typical: 8 to 32.")
    if not 0 < sigma_min < sigma_max < math.inf:
        raise DiffusionInputError(
            f"Noise levels need 0 < sigma_min < sigma_max, got {sigma_min} and {sigma_max}. EDM: 0.002, 80."
        )
    if not 0 < rho < math.inf:
        raise DiffusionInputError(f"rho must be positive and finite, got {rho}. EDM: 7.")
