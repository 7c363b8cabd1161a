"""Preconditioned denoising of images, EDM (Karras et al. 2022): D(x; σ) ≈ E[x_0 | x_0 + σ n = x].

| symbol | name | shape |
|---|---|---|
| x_0 | clean latent image, standard deviation σ_data | [b, c, h, w] |
| σ | sigma, standard deviation of the noise | [b] or one number |
| D | what the denoiser returns, an estimate of x_0 | [b, c, h, w] |
| F | the raw network | [b, c, h, w] |
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.diffusion.inputs import DiffusionInputError


class Denoise(Protocol):
    """D with its condition bound: what samplers integrate. ``sigma`` is one number for the whole batch."""

    def __call__(
        self, x: Float[Tensor, "b c h w"], sigma: Float[Tensor, ""], /
    ) -> Float[Tensor, "b c h w"]: ...


class ConditionalDenoiser(Protocol):
    """D(x; σ, condition); the condition None means "none", as does a vector of zeros."""

    def __call__(
        self,
        x: Float[Tensor, "b c h w"],
        sigma: Float[Tensor, "*b"],
        condition: Float[Tensor, "b e"] | None,
        /,
    ) -> Float[Tensor, "b c h w"]: ...


class Scalings(NamedTuple):
    """The four factors of EDM's Eq. (7), each of the shape of sigma."""

    skip: Float[Tensor, "*b"]
    out: Float[Tensor, "*b"]
    input: Float[Tensor, "*b"]
    noise: Float[Tensor, "*b"]


def edm_scalings(sigma: Float[Tensor, "*b"], sigma_data: float = 0.5) -> Scalings:
    """Factors of D = c_skip x + c_out F(c_in x; c_noise), EDM Eq. (7) and Table 1.

    c_skip = σ_d² / (σ² + σ_d²), c_out = σ σ_d / √(σ² + σ_d²), c_in = 1 / √(σ² + σ_d²), c_noise = ln(σ) / 4.
    With them the input and the target of F have variance 1 at every σ if x_0 has variance σ_d², and no other
    c_skip makes F's errors count less in D.

    Args:
        sigma: Noise levels, > 0. Not checked: reading values would make a GPU wait.
        sigma_data: σ_d, the standard deviation of x_0.

    Raises:
        DiffusionInputError: If ``sigma_data`` is not positive and finite.
    """
    check_sigma_data(sigma_data)
    total = sigma.square() + sigma_data**2
    root = total.sqrt()
    return Scalings(sigma_data**2 / total, sigma * sigma_data / root, 1 / root, sigma.log() / 4)


class EDMDenoiser(nn.Module):
    """D(x; σ, condition) = c_skip x + c_out F(c_in x, c_noise, condition), EDM Eq. (7).

    Args:
        network: F, called as ``network(x, noise, condition)`` with one c_noise a row. It starts at zero output
            in this project, so that D starts as the best linear denoiser.
        sigma_data: σ_d, the standard deviation of the latents it is trained on.

    Raises:
        DiffusionInputError: If ``sigma_data`` is not positive and finite.
    """

    def __init__(self, network: nn.Module, sigma_data: float = 0.5) -> None:
        super().__init__()
        check_sigma_data(sigma_data)
        self.network = network
        self.sigma_data = sigma_data

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        sigma: Float[Tensor, "*b"],
        condition: Float[Tensor, "b e"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """The denoised images; ``sigma`` is one a row, or a single one (no dimensions) for all rows.

        Raises:
            DiffusionInputError: On wrong shapes or types. What ``condition`` may be is up to the network.
        """
        check_latent_images("x", x)
        check_sigma(sigma, len(x))
        scalings = edm_scalings(sigma.to(x.device), self.sigma_data)
        skip, out, scale_in = (per_row(factor).to(x.dtype) for factor in scalings[:3])
        noise = scalings.noise.to(x.dtype).expand(len(x))
        return skip * x + out * self.network(scale_in * x, noise, condition)


def per_row(values: Float[Tensor, "*b"]) -> Float[Tensor, "*b 1 1 1"]:
    """One value a row, to be multiplied with images; a single value stays one."""
    return values if values.ndim == 0 else values.reshape(-1, 1, 1, 1)


def check_sigma_data(sigma_data: float) -> None:
    """Refuse a deviation of the data that is not a positive number."""
    if not (math.isfinite(sigma_data) and sigma_data > 0):
        raise DiffusionInputError(
            f"sigma_data must be positive and finite, got {sigma_data}. EDM standardizes latents to 0.5."
        )


def check_sigma(sigma: Tensor, num_rows: int) -> None:
    """Refuse anything but one floating-point noise level, or one a row."""
    if not sigma.is_floating_point() or sigma.shape not in ((), (num_rows,)):
        raise DiffusionInputError(
            f"sigma must be floating-point of shape [] or [{num_rows}], got {sigma.dtype} {list(sigma.shape)}."
        )


def check_latent_images(name: str, images: Tensor) -> None:
    """Refuse anything but a floating-point batch of images."""
    if images.ndim != 4 or not images.is_floating_point():
        raise DiffusionInputError(
            f"{name} must be a floating-point tensor of shape [rows, channels, height, width], "
            f"got {images.dtype} {list(images.shape)}. Encode images with a codec first."
        )
