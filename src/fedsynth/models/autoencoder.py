"""Variational autoencoders of images (diffusers' ``AutoencoderKL``): a stored one, a small one, and either as a codec.

Stable Diffusion 2's, which PSO-secure sharing uses, turns 3 × 512 × 512 pixels into 4 × 64 × 64 latents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.models.inputs import ModelInputError, require_floating, require_positive, require_shape

Shape = tuple[int, int, int]
# diffusers.AutoencoderKL: seconds to import, which codecs without one need not pay; type checkers see none of its
# methods.
Autoencoder = Any


@dataclass(frozen=True, eq=False)
class AutoencoderCodec:
    """An autoencoder as an ``ImageCodec``: frozen, in eval mode, images in [0, 1] in and out.

    A grey image is repeated to the channels the autoencoder wants; decoded channels are averaged.

    Attributes:
        autoencoder: Put into eval mode and frozen.
        image_shape: Channels, height and width of an image.
        pixel_range: What the autoencoder sees: ``unit``, [0, 1], as in the code of PSO-secure sharing, or ``signed``,
            [-1, 1], what Stable Diffusion's was trained on.
        posterior: ``sample`` draws latents from the encoder's normal law, ``mean`` takes its mean.

    Raises:
        ModelInputError: If image and autoencoder do not fit, or an option is unknown.
    """

    autoencoder: Autoencoder
    image_shape: Shape
    pixel_range: str = "unit"
    posterior: str = "sample"

    # fidelity: autoencoder-input
    def __post_init__(self) -> None:
        if self.pixel_range not in ("unit", "signed") or self.posterior not in ("sample", "mean"):
            raise ModelInputError(
                f"pixel_range must be unit or signed and posterior sample or mean, got {self.pixel_range!r} and "
                f"{self.posterior!r}."
            )
        channels, height, width = self.image_shape
        wanted = self.autoencoder.config.in_channels
        if wanted not in (channels, 3 * channels):
            raise ModelInputError(
                f"The autoencoder takes {wanted} channels, but the images have {channels}; grey images (1) are "
                "repeated to 3, nothing else fits."
            )
        factor = downsampling_factor(self.autoencoder)
        if height % factor or width % factor:
            raise ModelInputError(
                f"The autoencoder divides sides by {factor}, which does not divide {height} x {width}. Resize the "
                f"images to a multiple of {factor} or use an autoencoder with fewer levels."
            )
        self.autoencoder.eval().requires_grad_(False)

    @property
    def latent_shape(self) -> Shape:
        """[latent channels, height / factor, width / factor]."""
        factor = downsampling_factor(self.autoencoder)
        _, height, width = self.image_shape
        return int(self.autoencoder.config.latent_channels), height // factor, width // factor

    @torch.no_grad()
    def encode(
        self, image: Float[Tensor, "n c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "n d i j"]:
        """Latents of images in [0, 1], drawn from ``generator`` unless ``posterior`` is ``mean``.

        Image by image: however many are encoded at a time, one generator gives the same draws.

        Raises:
            ModelInputError: On wrong shapes or types, or if there is nothing to draw from.
        """
        require_shape("image", image, None, *self.image_shape)
        require_floating("image", image)
        law = self.autoencoder.encode(self._pixels(image)).latent_dist
        if self.posterior == "mean":
            return law.mean
        if generator is None:
            raise ModelInputError("Latents are drawn: pass a generator, or take posterior='mean'.")
        # One call for all rows would give other draws for rows whose size is no multiple of torch's block of 16.
        draws = [_normal_like(row, generator) for row in law.mean]
        return law.mean + law.std * torch.stack(draws)

    @torch.no_grad()
    def decode(self, latent: Float[Tensor, "n d i j"]) -> Float[Tensor, "n c h w"]:
        """Images; values may lie outside [0, 1]."""
        require_shape("latent", latent, None, *self.latent_shape)
        image = self.autoencoder.decode(latent).sample
        if self.pixel_range == "signed":
            image = (image + 1) / 2
        return image.unflatten(1, (-1, self.image_shape[0])).mean(1)

    def _pixels(self, image: Tensor) -> Tensor:
        image = image.repeat(1, self.autoencoder.config.in_channels // image.shape[1], 1, 1)
        return 2 * image - 1 if self.pixel_range == "signed" else image


def downsampling_factor(autoencoder: Autoencoder) -> int:
    """Side of an image divided by the side of its latent: 2 for each level but the first."""
    return 2 ** (len(autoencoder.config.block_out_channels) - 1)


def small_autoencoder(
    image_channels: int = 1,
    latent_channels: int = 4,
    channels: Sequence[int] = (16, 32),
    blocks_per_level: int = 1,
) -> Autoencoder:
    """An untrained autoencoder for small images.

    Args:
        image_channels: Channels of an image.
        latent_channels: Channels of a latent.
        channels: Width of each level; each further level halves the image.
        blocks_per_level: Residual blocks of each level.

    Raises:
        ModelInputError: On sizes below one.
    """
    require_positive("image_channels, latent_channels and blocks_per_level", image_channels, latent_channels,
                     blocks_per_level)  # fmt: skip
    require_positive("channels", *channels)
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=image_channels,
        out_channels=image_channels,
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        block_out_channels=tuple(channels),
        layers_per_block=blocks_per_level,
        latent_channels=latent_channels,
        norm_num_groups=math.gcd(8, *channels),
    )


def load_autoencoder(
    weights: str, *, subfolder: str | None = None, revision: str | None = None, allow_download: bool = False
) -> Autoencoder:
    """A stored autoencoder in the layout of diffusers (``config.json`` and weights).

    Args:
        weights: A folder, or a model of the Hugging Face hub such as ``stabilityai/stable-diffusion-2``.
        subfolder: Where in it the autoencoder is, e.g. ``vae``.
        revision: Branch, tag or commit of the hub.
        allow_download: Whether a model that is not on this machine may be fetched.

    Raises:
        ModelInputError: If it is not there, or is not an AutoencoderKL with exactly the weights of its config.
    """
    from diffusers import AutoencoderKL

    where = f"{weights}, subfolder {subfolder}" if subfolder else weights
    try:
        config = AutoencoderKL.load_config(
            weights, subfolder=subfolder, revision=revision, local_files_only=not allow_download
        )
        _check_is_autoencoder(config, where)
        model, found = AutoencoderKL.from_pretrained(
            weights,
            subfolder=subfolder,
            revision=revision,
            local_files_only=not allow_download,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, ModelInputError):
            raise
        hint = "" if allow_download or Path(weights).is_dir() else " Downloading is not allowed."
        raise ModelInputError(
            f"The autoencoder {where} cannot be loaded: {str(error).splitlines()[0]}{hint}"
        ) from error
    wrong = [*found["missing_keys"], *found["unexpected_keys"], *found["mismatched_keys"]]
    if wrong:
        raise ModelInputError(
            f"The weights of {where} are of another architecture than its config.json: {len(wrong)} names or shapes "
            f"differ, such as {', '.join(map(str, wrong[:3]))}."
        )
    return model


class AutoencoderLosses(NamedTuple):
    """The two parts of the training loss, each a mean."""

    reconstruction: Float[Tensor, ""]
    divergence: Float[Tensor, ""]


def autoencoder_losses(
    autoencoder: Autoencoder, image: Float[Tensor, "b c h w"], generator: torch.Generator
) -> AutoencoderLosses:
    """Mean |x - x̂| over pixels, and mean KL(N(μ, s²) ‖ N(0, 1)) over latent values, ½ (μ² + s² - 1 - ln s²).

    As in latent diffusion (Rombach et al. 2022), without its perceptual and adversarial parts, whose networks are
    downloads.
    """
    # fidelity: small-autoencoder
    law = autoencoder.encode(image).latent_dist
    decoded = autoencoder.decode(law.mean + law.std * _normal_like(law.mean, generator)).sample
    divergence = 0.5 * (law.mean.square() + law.var - 1 - law.logvar)
    return AutoencoderLosses((decoded - image).abs().mean(), divergence.mean())


def _check_is_autoencoder(config: dict[str, object], where: str) -> None:
    kind = config.get("_class_name")
    if kind != "AutoencoderKL":
        raise ModelInputError(
            f"{where} is of class {kind}, not AutoencoderKL: wrong architecture. Name the folder of the autoencoder, "
            "or its subfolder."
        )


def _normal_like(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal draws of the generator's device, where ``like`` is: a CPU generator gives the same on all devices."""
    return torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype).to(
        like.device
    )
