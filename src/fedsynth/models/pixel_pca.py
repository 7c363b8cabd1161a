"""Principal components of pixels: a feature space without a network.

Networks trained on photographs may weigh what hardly matters in a radiograph; EfficientNet-Lite0 at small sizes reacts
to pixel noise far more than to anatomy. A second space that does not is reported beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from fedsynth.errors import DataError
from fedsynth.models.image_encoder import check_gray

#: Larger images are shrunk to this many pixels a side: a covariance of 512 x 512 pixels fits in no memory.
LARGEST_SIDE = 32


@dataclass(frozen=True, eq=False)
class PixelPCA:
    """Coordinates of images along the principal components of the training images' gray levels in [0, 1].

    Distances are those between pixels within these components, in gray levels (not whitened).

    Attributes:
        mean: Of the training images, shrunk and flattened.
        components: Orthonormal, of falling variance.
        side: Height and width of the shrunk images.
    """

    mean: Float[Tensor, " pixel"]
    components: Float[Tensor, "pixel d"]
    side: tuple[int, int]

    @property
    def dim(self) -> int:
        """d."""
        return self.components.shape[1]

    @property
    def name(self) -> str:
        """E.g. ``pixel_pca64``."""
        return f"pixel_pca{self.dim}"

    def features(self, image: UInt8[Tensor, "n 1 h w"], batch_size: int) -> Float[Tensor, "n d"]:
        """Coordinates, float32.

        Args:
            image: Gray levels; shrunk as the training images were.
            batch_size: Images at once.

        Raises:
            DataError: If they are no 8-bit gray images.
        """
        check_gray(image)
        parts = [(_pixels(part, self.side) - self.mean) @ self.components for part in image.split(batch_size)]
        return torch.cat(parts).float()


def fit_pixel_pca(
    image: UInt8[Tensor, "n 1 h w"], num_components: int = 64, batch_size: int = 1024
) -> PixelPCA:
    """The leading principal components of training images, exactly, from their covariance.

    Args:
        image: Training images; other images are never used.
        num_components: d; fewer if there are fewer images or pixels.
        batch_size: Images at once.

    Raises:
        DataError: Fewer than 2 images, or no 8-bit gray images.
    """
    check_gray(image)
    if len(image) < 2:
        raise DataError(f"Principal components need at least 2 images, got {len(image)}.")
    side = (min(image.shape[2], LARGEST_SIDE), min(image.shape[3], LARGEST_SIDE))
    mean = torch.stack([_pixels(part, side).sum(0) for part in image.split(batch_size)]).sum(0) / len(image)
    scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for part in image.split(batch_size):
        centered = _pixels(part, side) - mean
        scatter += centered.T @ centered
    components = torch.linalg.eigh(scatter).eigenvectors.flip(1)[:, : min(num_components, len(image) - 1)]
    return PixelPCA(mean, components.contiguous(), side)


def _pixels(image: UInt8[Tensor, "b 1 h w"], side: tuple[int, int]) -> Float[Tensor, "b pixel"]:
    level = image.double() / 255
    if tuple(level.shape[-2:]) != side:
        level = nn.functional.interpolate(level, size=side, mode="area")
    return level.flatten(1)
