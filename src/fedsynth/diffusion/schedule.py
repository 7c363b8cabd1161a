"""Noise schedules: how much of the signal is left at each timestep.

| symbol | name | shape |
|---|---|---|
| T | num_timesteps | |
| t | timestep, 0 … T - 1; 0 is the least noisy, one below the paper's count from 1 | |
| β_t | beta | [T] |
| ᾱ_t | alpha_bar = Π_{s ≤ t} (1 - β_s) | [T] |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.diffusion.inputs import DiffusionInputError

MAX_TERMINAL_ALPHA_BAR = 1e-4
"""Sampling starts from N(0, I), which is x_T only if ᾱ_T is almost 0: at 6e-3 means are off by 0.06 sd."""


@dataclass(frozen=True, eq=False)
class NoiseSchedule:
    """ᾱ for every timestep, in float64.

    Raises:
        DiffusionInputError: Unless ᾱ falls strictly within (0, 1) and ends below ``MAX_TERMINAL_ALPHA_BAR``.
    """

    alpha_bar: Float[Tensor, " T"]

    def __post_init__(self) -> None:
        alpha_bar = self.alpha_bar
        if alpha_bar.ndim != 1 or alpha_bar.dtype != torch.float64 or len(alpha_bar) == 0:
            raise DiffusionInputError(
                f"alpha_bar must be a non-empty float64 vector, "
                f"got {alpha_bar.dtype} {list(alpha_bar.shape)}."
            )
        if not (alpha_bar[0] < 1 and alpha_bar[-1] > 0 and (alpha_bar.diff() < 0).all()):
            raise DiffusionInputError(
                "alpha_bar must fall strictly within (0, 1); every beta must lie in (0, 1)."
            )
        if alpha_bar[-1] >= MAX_TERMINAL_ALPHA_BAR:
            raise DiffusionInputError(
                f"The schedule must end almost without signal, alpha_bar < {MAX_TERMINAL_ALPHA_BAR}, "
                f"but it ends at {float(alpha_bar[-1]):.3g}. "
                f"With {self.num_timesteps} timesteps use larger betas: scale them by 1000 / num_timesteps."
            )

    @property
    def num_timesteps(self) -> int:
        """T."""
        return len(self.alpha_bar)

    def scales(
        self, timestep: Int[Tensor, " b"], dtype: torch.dtype = torch.float32
    ) -> tuple[Float[Tensor, "b 1"], Float[Tensor, "b 1"]]:
        """Signal and noise scales √ᾱ_t and √(1 - ᾱ_t) as columns, on the timesteps' device."""
        # Indexed where the table lives, moved afterwards: a few numbers travel, not the whole table.
        alpha_bar = self.alpha_bar.to(timestep.device)[timestep].unsqueeze(-1)
        return alpha_bar.sqrt().to(dtype), (1 - alpha_bar).sqrt().to(dtype)


def linear_schedule(
    num_timesteps: int = 1000, beta_start: float = 1e-4, beta_end: float = 0.02
) -> NoiseSchedule:
    """β rising linearly (Ho et al. 2020), the default of that paper.

    Raises:
        DiffusionInputError: If a beta lies outside (0, 1) or signal is left at the end.
    """
    # fidelity: diffusion-schedule
    _check_num_timesteps(num_timesteps)
    if not 0 < beta_start <= beta_end < 1:
        raise DiffusionInputError(
            f"betas need 0 < beta_start ≤ beta_end < 1, got {beta_start} and {beta_end}."
        )
    beta = torch.linspace(beta_start, beta_end, num_timesteps, dtype=torch.float64)
    return NoiseSchedule((1 - beta).cumprod(0))


def cosine_schedule(num_timesteps: int = 1000, max_beta: float = 0.999) -> NoiseSchedule:
    """ᾱ following a squared cosine (Nichol & Dhariwal 2021, Eq. 17), with β capped at ``max_beta``."""
    _check_num_timesteps(num_timesteps)
    if not 0 < max_beta < 1:
        raise DiffusionInputError(f"max_beta must be in (0, 1), got {max_beta}.")
    time = torch.arange(num_timesteps + 1, dtype=torch.float64) / num_timesteps
    curve = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
    beta = (1 - curve[1:] / curve[:-1]).clamp(max=max_beta)
    return NoiseSchedule((1 - beta).cumprod(0))


def _check_num_timesteps(num_timesteps: int) -> None:
    if num_timesteps < 1:
        raise DiffusionInputError(f"num_timesteps must be at least 1, got {num_timesteps}. Typical: 1000.")
