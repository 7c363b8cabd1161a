"""Between images and the latents a diffusion model sees: one interface, exact codecs, and their standardization.

Images are floats in [0, 1] of shape [n, channels, height, width]. A codec turns them into latents and back; a pixel
unshuffle plays on small images the part that an autoencoder plays on large ones: more channels, a smaller grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from fedsynth.errors import ConfigError, DataError

Shape = tuple[int, int, int]


@runtime_checkable
class ImageCodec(Protocol):
    """Images to latents and back. ``latent_shape`` is [channels, height, width] of one latent."""

    @property
    def latent_shape(self) -> Shape: ...

    def encode(
        self, image: Float[Tensor, "n c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "n d i j"]:
        """Latents of images in [0, 1]; codecs that draw them, as autoencoders do, draw from ``generator``."""
        ...

    def decode(self, latent: Float[Tensor, "n d i j"]) -> Float[Tensor, "n c h w"]:
        """Images of latents; generated latents may give values outside [0, 1], which ``grey_levels`` clips."""
        ...


@dataclass(frozen=True)
class PixelUnshuffle:
    """Each factor × factor square of pixels becomes factor² channels; ``decode`` undoes it bit for bit.

    A factor of 1 leaves images as they are (``identity_codec``).

    Attributes:
        image_shape: Channels, height and width of an image.
        factor: Side of the squares.

    Raises:
        ConfigError: If the factor is below 1 or does not divide height and width.
    """

    image_shape: Shape
    factor: int = 2

    def __post_init__(self) -> None:
        if len(self.image_shape) != 3 or min(self.image_shape) < 1:
            raise ConfigError(f"image_shape must be three positive sizes, got {self.image_shape}.")
        _, height, width = self.image_shape
        if self.factor < 1 or height % self.factor or width % self.factor:
            raise ConfigError(
                f"The factor of a pixel unshuffle must divide height and width, got {self.factor} for "
                f"{height} x {width}. Resize the images or choose another factor."
            )

    @property
    def latent_shape(self) -> Shape:
        """[channels · factor², height / factor, width / factor]."""
        channels, height, width = self.image_shape
        return channels * self.factor**2, height // self.factor, width // self.factor

    def encode(
        self, image: Float[Tensor, "n c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "n d i j"]:
        """Latents; nothing is drawn from ``generator``."""
        _check_batch("image", image, self.image_shape)
        return functional.pixel_unshuffle(image, self.factor)

    def decode(self, latent: Float[Tensor, "n d i j"]) -> Float[Tensor, "n c h w"]:
        """The images whose latents these are."""
        _check_batch("latent", latent, self.latent_shape)
        return functional.pixel_shuffle(latent, self.factor)


def identity_codec(image_shape: Shape) -> PixelUnshuffle:
    """The codec whose latents are the images themselves (diffusion in pixel space)."""
    return PixelUnshuffle(image_shape, factor=1)


@dataclass(frozen=True, eq=False)
class LatentStatistics:
    """Mean and standard deviation of training latents, one for all channels or one a channel.

    Raises:
        DataError: If shapes differ or a value is not finite, or a deviation not positive.
    """

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise DataError(
                f"Latent statistics must be two vectors of one length, got {list(self.mean.shape)} and "
                f"{list(self.std.shape)}."
            )
        if not (self.mean.isfinite().all() and self.std.isfinite().all() and (self.std > 0).all()):
            raise DataError(
                f"Latent statistics must be finite and deviations positive, got means {self.mean.tolist()} and "
                f"deviations {self.std.tolist()}. A channel that never varies cannot be standardized."
            )

    @classmethod
    def fit(cls, batches: Tensor | Iterable[Float[Tensor, "n d i j"]], per_channel: bool) -> LatentStatistics:
        """Population moments over images and pixels, in float64, of latents given whole or in batches.

        Fit them on training images only. They are averages over private records and not private themselves.

        Args:
            batches: Latents of the training images.
            per_channel: One mean and deviation a channel, for autoencoders; one for all channels keeps the
                relative sizes of the channels of a pixel unshuffle, which are all the same kind of thing.

        Raises:
            DataError: If there is no latent, or a value is not finite.
        """
        # fidelity: latent-statistics
        count, mean, squares = 0, torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        for batch in [batches] if isinstance(batches, Tensor) else batches:
            values = batch.double().movedim(1, 0).flatten(1)  # [channel, values]
            values = (values if per_channel else values.reshape(1, -1)).cpu()
            size = values.shape[1]
            if size == 0:
                continue
            # Chan et al.'s update: a running sum of squares would cancel where the mean is large.
            shift = values.mean(1) - mean
            mean = mean + shift * (size / (count + size))
            squares = (
                squares + values.var(1, correction=0) * size + shift**2 * (count * size / (count + size))
            )
            count += size
        if count == 0:
            raise DataError("Latent statistics need at least one training image, got none.")
        return cls(mean, (squares / count).sqrt())

    def to_tensors(self) -> dict[str, Tensor]:
        """Mean and deviation, for safetensors."""
        return {"mean": self.mean, "std": self.std}


@dataclass(frozen=True, eq=False)
class StandardizedCodec:
    """A codec whose latents have mean 0 and standard deviation ``sigma_data`` on the training images.

    Attributes:
        codec: The codec inside.
        statistics: Moments of its latents.
        sigma_data: σ_data of the diffusion model.

    Raises:
        ConfigError: If the statistics are of another number of channels, or ``sigma_data`` is not positive.
    """

    codec: ImageCodec
    statistics: LatentStatistics
    sigma_data: float = 0.5

    def __post_init__(self) -> None:
        channels, known = self.codec.latent_shape[0], len(self.statistics.mean)
        if known not in (1, channels):
            raise ConfigError(f"Latents have {channels} channels but the statistics {known}; fit them again.")
        if not (math.isfinite(self.sigma_data) and self.sigma_data > 0):
            raise ConfigError(f"sigma_data must be positive and finite, got {self.sigma_data}. EDM: 0.5.")

    @property
    def latent_shape(self) -> Shape:
        """That of the codec inside."""
        return self.codec.latent_shape

    def encode(
        self, image: Float[Tensor, "n c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "n d i j"]:
        """σ_data (z - mean) / std of the inner latents z."""
        return self.standardize(self.codec.encode(image, generator))

    def standardize(self, latent: Float[Tensor, "n d i j"]) -> Float[Tensor, "n d i j"]:
        """σ_data (z - mean) / std of latents z that the inner codec encoded already."""
        mean, std = self._moments(latent)
        return (latent - mean) * (self.sigma_data / std)

    def decode(self, latent: Float[Tensor, "n d i j"]) -> Float[Tensor, "n c h w"]:
        """Images of the inner latents mean + std / σ_data · latent."""
        _check_batch("latent", latent, self.latent_shape)
        mean, std = self._moments(latent)
        return self.codec.decode(mean + latent * (std / self.sigma_data))

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (v.reshape(1, -1, 1, 1).to(like) for v in (self.statistics.mean, self.statistics.std))
        return mean, std


def unit_images(image: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Grey levels 0 … 255 as floats in [0, 1].

    Raises:
        DataError: If they are not uint8.
    """
    if image.dtype != torch.uint8:
        raise DataError(f"Images must be uint8 grey levels, got {image.dtype}; they would be scaled twice.")
    return image.float() / 255


def grey_levels(image: Float[Tensor, "n c h w"]) -> UInt8[Tensor, "n c h w"]:
    """Images of a codec as grey levels 0 … 255, rounded and clipped.

    Raises:
        DataError: If a value is not finite, as after a diverged training.
    """
    if not image.is_floating_point() or not bool(image.isfinite().all()):
        raise DataError("Decoded images must be finite floats; the diffusion model may have diverged.")
    return (image * 255).round().clamp(0, 255).to(torch.uint8)


def _check_batch(name: str, batch: Tensor, shape: Shape) -> None:
    if batch.ndim != 4 or tuple(batch.shape[1:]) != tuple(shape) or not batch.is_floating_point():
        raise DataError(
            f"{name} must be a floating-point batch of shape [n, {', '.join(map(str, shape))}], "
            f"got {batch.dtype} {list(batch.shape)}."
        )
