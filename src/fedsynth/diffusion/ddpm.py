"""The forward process and the training loss: FedDP-PALD Eqs. (26) and (27)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.diffusion.inputs import Denoiser, DiffusionInputError, check_labels, check_latents, null_label
from fedsynth.diffusion.schedule import NoiseSchedule


def add_noise(
    x0: Float[Tensor, "b d"],
    noise: Float[Tensor, "b d"],
    timestep: Int[Tensor, " b"],
    schedule: NoiseSchedule,
) -> Float[Tensor, "b d"]:
    """Latents at a timestep, FedDP-PALD Eq. (26): x_t = √ᾱ_t x_0 + √(1 - ᾱ_t) ε.

    Args:
        x0: Standardized latents.
        noise: ε, standard normal.
        timestep: t of each row, 0 … T - 1. Not range-checked: it is drawn by this package.
        schedule: ᾱ.

    Raises:
        DiffusionInputError: If shapes or types do not match.
    """
    check_latents("x0", x0)
    if noise.shape != x0.shape or timestep.shape != x0.shape[:1]:
        raise DiffusionInputError(
            f"noise and timestep must match x0 {list(x0.shape)}, "
            f"got {list(noise.shape)} and {list(timestep.shape)}."
        )
    signal_scale, noise_scale = schedule.scales(timestep, x0.dtype)
    return signal_scale * x0 + noise_scale * noise


def noise_prediction_loss(
    denoiser: Denoiser,
    x0: Float[Tensor, "b d"],
    label: Int[Tensor, " b"],
    schedule: NoiseSchedule,
    label_dropout: float,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """One Monte Carlo estimate of FedDP-PALD Eq. (27): E ‖ε - ε_ψ(x_t, t, c')‖².

    t is uniform, ε standard normal, and c' the label, replaced by the denoiser's null label with probability
    ``label_dropout`` so that the same network learns the unconditional prediction (Ho & Salimans 2022).
    The mean over dimensions is taken instead of the sum.

    Args:
        denoiser: ε_ψ.
        x0: Standardized latents.
        label: Class of each row.
        schedule: ᾱ.
        label_dropout: p_uncond, in [0, 1].
        generator: Source of t, ε and dropout. Its device may differ from ``x0``'s; a CPU generator gives the
            same draws on every device.

    Raises:
        DiffusionInputError: On wrong shapes or types, or a dropout outside [0, 1].
    """
    # fidelity: loss-mean-over-dims
    check_latents("x0", x0)
    check_labels(label, len(x0))
    if not 0 <= label_dropout <= 1:
        raise DiffusionInputError(f"label_dropout must be in [0, 1], got {label_dropout}. Typical: 0.1.")
    device, num_rows = generator.device, len(x0)
    timestep = torch.randint(schedule.num_timesteps, (num_rows,), generator=generator, device=device)
    noise = torch.randn(x0.shape, generator=generator, device=device, dtype=x0.dtype)
    is_dropped = torch.rand(num_rows, generator=generator, device=device) < label_dropout
    timestep, noise, is_dropped = timestep.to(x0.device), noise.to(x0.device), is_dropped.to(x0.device)
    x_t = add_noise(x0, noise, timestep, schedule)
    prediction = denoiser(x_t, timestep, label.masked_fill(is_dropped, null_label(denoiser)))
    return torch.nn.functional.mse_loss(prediction, noise)
