"""Random views of X-ray images: another pose and exposure of the same person."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

#: At strength 1: rotation in degrees, relative zoom, shift as a share of the side, relative contrast, brightness
#: and noise in grey levels of [0, 1]; the first five uniform in ± the value, noise Gaussian.
# fidelity: reidentifier-views
ROTATION, ZOOM, SHIFT, CONTRAST, BRIGHTNESS, NOISE = 8.0, 0.10, 0.06, 0.25, 0.08, 0.02


def random_views(
    pixels: Float[Tensor, "n c h w"], strength: float, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """One random view of each image.

    Args:
        pixels: Grey levels in [0, 1].
        strength: Factor of all ranges; 0 returns the images as they are.
        generator: On the device of the images.

    Returns:
        Grey levels, clipped to [0, 1]; what turns into view from outside repeats the border.
    """
    if strength == 0:
        return pixels
    num = len(pixels)
    draws = torch.rand(num, 6, generator=generator, device=pixels.device, dtype=pixels.dtype) * 2 - 1
    angle = draws[:, 0] * math.radians(ROTATION) * strength
    zoom = 1 + draws[:, 1] * min(0.9, ZOOM * strength)
    cosine, sine = angle.cos() * zoom, angle.sin() * zoom
    # affine_grid's coordinates run over [-1, 1]: a shift by the side's share s is 2 s.
    shift = draws[:, 2:4] * 2 * SHIFT * strength
    rows = [torch.stack([cosine, -sine, shift[:, 0]], 1), torch.stack([sine, cosine, shift[:, 1]], 1)]
    grid = nn.functional.affine_grid(torch.stack(rows, 1), list(pixels.shape), align_corners=False)
    moved = nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    contrast = (1 + draws[:, 4] * min(0.9, CONTRAST * strength)).view(-1, 1, 1, 1)
    brightness = (draws[:, 5] * BRIGHTNESS * strength).view(-1, 1, 1, 1)
    mean = moved.mean(dim=(1, 2, 3), keepdim=True)
    noise = torch.randn(moved.shape, generator=generator, device=pixels.device, dtype=pixels.dtype)
    return ((moved - mean) * contrast + mean + brightness + NOISE * strength * noise).clamp(0, 1)
