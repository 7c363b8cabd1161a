"""Square grey images at another size."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import UInt8

from fedsynth.errors import ConfigError


def resize_images(
    image: UInt8[np.ndarray, "n h w"], size: int, *, allow_upsampling: bool = False
) -> UInt8[np.ndarray, "n size size"]:
    """Bilinear interpolation with antialiasing (a triangle filter as wide as the reduction), rounded to grey levels.

    Images of that size already are returned bit for bit.

    Raises:
        ConfigError: If ``size`` exceeds the stored size and upsampling was not allowed: it adds pixels, not detail.
    """
    stored = image.shape[-1]
    if size == stored:
        return image
    if size > stored and not allow_upsampling:
        raise ConfigError(
            f"image_size={size} exceeds the stored size of {stored} pixels. Take image_size={stored} or less, a file "
            "of larger images, or allow_upsampling=true, which adds pixels but no detail."
        )
    parts = [
        torch.nn.functional.interpolate(
            torch.from_numpy(part).unsqueeze(1).float(), (size, size), mode="bilinear", antialias=True
        )
        for part in np.array_split(
            image, max(1, len(image) // 1024)
        )  # bounded memory: floats take four times the bytes
    ]
    return torch.cat(parts).squeeze(1).round().clamp(0, 255).to(torch.uint8).numpy()
