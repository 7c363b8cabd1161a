"""Frozen encoders of gray images behind one interface: pseudo-conditions, Fréchet distances and privacy tests use them.

Each turns 8-bit images into one vector by a network that was trained elsewhere and is never trained here. What a
distance between such vectors means depends on the network: a number is comparable only with one of the same encoder and
the same weights, so both are always named beside it. Networks: `fedsynth.models.image_encoder_networks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from fedsynth.errors import ConfigError, DataError
from fedsynth.models.weight_files import weights_digest


class ImageFeatures(Protocol):
    """Images as vectors: a space to measure in."""

    @property
    def name(self) -> str:
        """Which encoder."""

    @property
    def dim(self) -> int:
        """Length of a feature."""

    def features(self, image: UInt8[Tensor, "n c h w"], batch_size: int) -> Float[Tensor, "n d"]:
        """One float32 vector an image, on the CPU."""


class ImageEncoder(ImageFeatures, Protocol):
    """A network with weights of its own; what the stages ask of it."""

    @property
    def weights_sha256(self) -> str:
        """Which weights: numbers of other ones do not compare."""


@dataclass(frozen=True)
class Preprocessing:
    """From 8-bit gray levels to what a network was trained on.

    Attributes:
        size: Height and width after resizing; None leaves the image to the network, as 8-bit levels. Images that are
            not square are squashed.
        mean, std: Of each color, of levels in [0, 1].
        interpolation: ``bicubic`` or ``bilinear``, with antialiasing when an image shrinks.
    """

    size: int | None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    interpolation: str = "bicubic"

    def __call__(self, image: UInt8[Tensor, "b 1 h w"]) -> Tensor:
        """Three equal colors, resized and normalized."""
        if self.size is None:
            return image.expand(-1, 3, -1, -1)
        level = image.float() / 255
        if level.shape[-2:] != (self.size, self.size):
            level = nn.functional.interpolate(
                level,
                size=(self.size, self.size),
                mode=self.interpolation,
                align_corners=False,
                antialias=max(level.shape[-2:]) > self.size,
            )
        mean, std = (level.new_tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (level - mean) / std


class FrozenImageEncoder(nn.Module):
    """A network in evaluation mode with its preprocessing.

    Args:
        name: Which encoder, e.g. ``swav``.
        network: Preprocessed images → [b, d] vectors.
        preprocessing: What the network expects.
        dim: d.

    Attributes:
        weights_sha256: `weights_digest` of the network.
    """

    def __init__(self, name: str, network: nn.Module, preprocessing: Preprocessing, dim: int) -> None:
        super().__init__()
        self.name, self.dim, self.preprocessing = name, dim, preprocessing
        self.network = network.requires_grad_(False).eval()
        self.weights_sha256 = weights_digest(network)

    def train(self, mode: bool = True) -> FrozenImageEncoder:
        """Stays in evaluation mode: batch statistics would make a feature depend on its neighbors in the batch."""
        return super().train(False)

    @torch.inference_mode()
    def features(self, image: UInt8[Tensor, "n 1 h w"], batch_size: int) -> Float[Tensor, "n d"]:
        """Raw pooled features (not of length 1), float32 on the CPU.

        Args:
            image: Gray levels.
            batch_size: Images at once; changes nothing but memory and time.

        Raises:
            DataError: If the images are not 8-bit gray images, or a feature is not finite.
        """
        check_gray(image)
        device = next(iter(self.network.parameters())).device
        found = torch.empty(len(image), self.dim)
        for first in range(0, len(image), batch_size):
            part = self.preprocessing(image[first : first + batch_size].to(device))
            found[first : first + batch_size] = self.network(part).float().cpu()
        if not bool(found.isfinite().all()):
            raise DataError(
                f"The encoder {self.name} gave {int((~found.isfinite()).any(dim=1).sum())} of {len(image)} images "
                "features that are not finite. Look for a damaged weights file."
            )
        return found


def check_gray(image: Tensor) -> None:
    """Refuse what is not a stack of 8-bit gray images.

    Raises:
        DataError: Naming type and shape.
    """
    if image.dtype != torch.uint8 or image.ndim != 4 or image.shape[1] != 1 or len(image) == 0:
        raise DataError(
            f"An image encoder takes 8-bit gray images, uint8 of shape [n, 1, height, width], got {image.dtype} "
            f"{list(image.shape)}."
        )


def check_digest(encoder: FrozenImageEncoder, wanted: str | None, key: str) -> None:
    """Refuse weights other than those wanted; None wants nothing.

    Raises:
        ConfigError: Naming the key.
    """
    if wanted is not None and encoder.weights_sha256 != wanted:
        raise ConfigError(
            f"{key} wants weights of digest {wanted[:12]}…, but those of {encoder.name} have "
            f"{encoder.weights_sha256[:12]}…. Give the file that was meant, or set the key to null.",
            key=key,
        )
