"""A denoiser whose network predicts only what a straight line cannot."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from fedsynth.diffusion.inputs import null_label
from fedsynth.diffusion.schedule import NoiseSchedule


class PreconditionedDenoiser(nn.Module):
    """ε̂ = √(1 − ᾱ_t) x_t + √ᾱ_t F(x_t, t, c).

    The first term is the best linear prediction of ε for standardized latents. It matters at the noisy end,
    where Eq. (29) divides by √ᾱ_t: an error of 0.05 in ε̂ at t = 980 is one of 6 in x̂_0, which a plain network
    has to avoid by copying its input exactly. F then learns v = √ᾱ ε − √(1 − ᾱ) x_0 (Salimans & Ho 2022), but
    the loss stays the noise prediction of Eq. (27).

    Args:
        network: F, with a ``null_label``.
        schedule: ᾱ.
    """

    # fidelity: denoiser
    def __init__(self, network: nn.Module, schedule: NoiseSchedule) -> None:
        super().__init__()
        self.null_label = null_label(network)  # type: ignore[arg-type]
        self.network = network
        self.schedule = schedule

    def forward(
        self, x: Float[Tensor, "b d"], timestep: Int[Tensor, "*b"], label: Int[Tensor, " b"]
    ) -> Float[Tensor, "b d"]:
        """Predicted noise; ``timestep`` one a row, or a single one for all."""
        signal, noise = self.schedule.scales(timestep, x.dtype)
        return noise * x + signal * self.network(x, timestep, label)
