"""Deterministic DDIM sampling (Song et al. 2021), FedDP-PALD Eq. (29).

Timesteps come from diffusers. The update is our own: it costs a quarter of ``DDIMScheduler.step`` and looks
the previous timestep up in the list of timesteps, where diffusers computes it as t - T // num_steps, which
misses when the spacing is uneven (huggingface/diffusers#12633).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.diffusion.guidance import check_guidance_scale, guided_noise
from fedsynth.diffusion.inputs import Denoiser, DiffusionInputError, check_labels, check_latents, null_label
from fedsynth.diffusion.schedule import NoiseSchedule

Spacing = Literal["leading", "trailing"]
Progress = Callable[[int, int], None]


def ddim_timesteps(num_timesteps: int, num_steps: int, spacing: Spacing = "leading") -> list[int]:
    """The timesteps visited, from most to least noisy.

    ``"leading"`` ends at 0 but begins up to T / num_steps before T - 1; ``"trailing"`` begins at T - 1.
    The names are those of Lin et al. (2024), Table 2.

    Raises:
        DiffusionInputError: If ``num_steps`` is not in [1, num_timesteps] or the spacing is unknown.
    """
    from diffusers import DDIMScheduler  # a second to import, and only sampling needs it

    if not 1 <= num_steps <= num_timesteps:
        raise DiffusionInputError(f"num_steps must be in [1, {num_timesteps}], got {num_steps}. Typical: 50.")
    if spacing not in ("leading", "trailing"):
        raise DiffusionInputError(f'spacing must be "leading" or "trailing", got {spacing!r}.')
    scheduler: Any = DDIMScheduler(num_train_timesteps=num_timesteps, timestep_spacing=spacing)
    scheduler.set_timesteps(num_steps)
    # "trailing" counts down in floating point and can overshoot by one entry, to -1.
    return scheduler.timesteps.tolist()[:num_steps]


def predict_x0(
    x: Float[Tensor, "b d"], noise: Float[Tensor, "b d"], alpha_bar: float
) -> Float[Tensor, "b d"]:
    """Clean latents implied by a noise prediction, FedDP-PALD Eq. (29): x̂_0 = (x_t - √(1 - ᾱ_t) ε̂) / √ᾱ_t."""
    return (x - (1 - alpha_bar) ** 0.5 * noise) / alpha_bar**0.5


def ddim_step(
    x: Float[Tensor, "b d"], noise: Float[Tensor, "b d"], alpha_bar: float, previous_alpha_bar: float
) -> Float[Tensor, "b d"]:
    """One deterministic step to a less noisy time, Eq. (29): x_t' = √ᾱ_t' x̂_0 + √(1 - ᾱ_t') ε̂.

    Equals ``DDIMScheduler.step`` with eta = 0 and no clipping. ``previous_alpha_bar`` = 1 returns x̂_0.
    """
    x0 = predict_x0(x, noise, alpha_bar)
    return previous_alpha_bar**0.5 * x0 + (1 - previous_alpha_bar) ** 0.5 * noise


def sample_ddim(
    denoiser: Denoiser,
    labels: Int[Tensor, " n"],
    *,
    schedule: NoiseSchedule,
    num_steps: int,
    guidance_scale: float,
    dim: int,
    generator: torch.Generator,
    batch_size: int,
    spacing: Spacing = "leading",
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Float[Tensor, "n dim"]:
    """Standardized latents x̂_0 of the given classes: ``denoise_ddim`` from x_T ~ N(0, I).

    All noise is drawn before the first step, so the result does not depend on ``batch_size`` (but for the
    last bits, as matrix products of other sizes add up in another order). Undo the standardization with
    ``LatentScaler.restore``, Eq. (30).

    Args:
        denoiser: ε_ψ, on the labels' device.
        labels: Class of each sample, 0 … ``null_label``.
        schedule: The one the denoiser was trained with.
        num_steps: Denoising steps, each one or two denoiser calls (see ``guided_noise``).
        guidance_scale: s of Eq. (28).
        dim: Length of a latent.
        generator: Source of x_T; its device may differ from the labels'.
        batch_size: Rows denoised together.
        spacing: Which timesteps are visited.
        dtype: Of the samples; the denoiser must accept it.
        progress: Called after each step with (rows × steps done, rows × steps in all).

    Raises:
        DiffusionInputError: On labels of the wrong type, shape or range, or impossible settings.
    """
    if dim < 1 or labels.ndim != 1:
        raise DiffusionInputError(
            f"dim must be at least 1, got {dim}, and labels a vector, got {labels.ndim}-d."
        )
    noise = torch.randn(len(labels), dim, generator=generator, device=generator.device, dtype=dtype)
    return denoise_ddim(
        denoiser,
        noise.to(labels.device),
        labels,
        schedule=schedule,
        num_steps=num_steps,
        guidance_scale=guidance_scale,
        batch_size=batch_size,
        spacing=spacing,
        progress=progress,
    )


@torch.no_grad()
def denoise_ddim(
    denoiser: Denoiser,
    noise: Float[Tensor, "n dim"],
    labels: Int[Tensor, " n"],
    *,
    schedule: NoiseSchedule,
    num_steps: int,
    guidance_scale: float,
    batch_size: int,
    spacing: Spacing = "leading",
    progress: Progress | None = None,
) -> Float[Tensor, "n dim"]:
    """The deterministic map from x_T to x̂_0 given by FedDP-PALD Eqs. (28) and (29), row by row.

    Arguments and errors are those of ``sample_ddim``; ``noise`` is x_T and is not changed. The denoiser's
    train/eval mode is left alone.
    """
    check_latents("noise", noise)
    check_labels(labels, len(noise))
    check_guidance_scale(guidance_scale)
    if batch_size < 1:
        raise DiffusionInputError(f"batch_size must be at least 1, got {batch_size}. Typical: 1024.")
    num_classes = null_label(denoiser)
    if len(labels) and not (labels.min() >= 0 and labels.max() <= num_classes):
        raise DiffusionInputError(
            f"labels must lie in [0, {num_classes}] ({num_classes} = no class), "
            f"got values from {int(labels.min())} to {int(labels.max())}."
        )
    timesteps = ddim_timesteps(schedule.num_timesteps, num_steps, spacing)
    alpha_bars = [*schedule.alpha_bar[timesteps].tolist(), 1.0]  # after the last step no noise is left
    samples = torch.empty_like(noise)
    total, done = len(noise) * num_steps, 0
    for start in range(0, len(noise), batch_size):
        rows = slice(start, start + batch_size)
        x, label = noise[rows], labels[rows]
        for index, timestep in enumerate(timesteps):
            time = torch.tensor(timestep, device=noise.device)
            epsilon = guided_noise(denoiser, x, time, label, guidance_scale)
            x = ddim_step(x, epsilon, alpha_bars[index], alpha_bars[index + 1])
            done += len(x)
            if progress is not None:
                progress(done, total)
        samples[rows] = x
    return samples
