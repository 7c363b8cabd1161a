"""images → codec: pixels themselves, an exact rearrangement, or an autoencoder (stored, or trained here)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.file_content import content_key
from fedsynth.pipeline.settings import build_settings, key_values, setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.image_set_kinds import REAL_IMAGES

POSTERIORS = ("sample", "mean")


@dataclass(frozen=True)
class CodecOptions:
    """What every codec has.

    Attributes:
        name: One of ``CODECS``.
        per_channel: One mean and deviation for each latent channel, or one for all.
    """

    name: str = setting()
    per_channel: bool = setting()

    @property
    def downsampling(self) -> int | None:
        """How many times smaller latents are than images, a side; None where only the stored weights say it."""
        return 1


@dataclass(frozen=True)
class UnshuffleOptions(CodecOptions):
    factor: int = setting(minimum=1, remedy="2 makes 4 x 14 x 14 latents of 28 x 28 pixels.")

    @property
    def downsampling(self) -> int:
        return self.factor


@dataclass(frozen=True)
class SmallAutoencoderOptions(CodecOptions):
    latent_channels: int = setting(minimum=1)
    channels: list[int] = setting(minimum=1)
    blocks_per_level: int = setting(minimum=1)
    posterior: str = setting(one_of=POSTERIORS)
    kl_weight: float = setting(minimum=0.0)
    learning_rate: float = setting(above=0.0, maximum=10.0)
    batch_size: int = setting(minimum=1)
    epochs: int = setting(minimum=1)

    @property
    def downsampling(self) -> int:
        return 2 ** (len(self.channels) - 1)

    def check(self, path: str) -> None:
        if not self.channels:
            raise ConfigError(
                f"{path}.channels must hold one width a level, got []. The default is [16, 32].",
                key=f"{path}.channels",
            )


@dataclass(frozen=True)
class StoredAutoencoderOptions(CodecOptions):
    weights: str = setting()
    subfolder: str | None = setting()
    revision: str | None = setting()
    allow_download: bool = setting()
    sha256: str | None = setting()
    pixel_range: str = setting(one_of=("unit", "signed"))
    posterior: str = setting(one_of=POSTERIORS)

    @property
    def downsampling(self) -> None:
        return None

    def check(self, path: str) -> None:
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ConfigError(
                f"{path}.sha256 must be 64 hexadecimal digits (0-9, a-f) in quotes, or null, got {self.sha256!r}. "
                "The notes of a run with null say it.",
                key=f"{path}.sha256",
            )
        # A hub model is owner/name; whether the machine holds it only diffusers knows, at the start of the stage.
        is_path = self.weights.startswith((".", "/", "~")) or self.weights.count("/") != 1
        if is_path and not Path(self.weights).expanduser().is_dir():
            raise ConfigError(
                f"{path}.weights must be a folder in diffusers' layout or a hub model OWNER/NAME, got "
                f"{self.weights!r}, which is neither. Set codec.weights.",
                key=f"{path}.weights",
            )


#: The options of each codec, by its name.
CODECS: dict[str, type[CodecOptions]] = {
    "identity": CodecOptions,
    "unshuffle": UnshuffleOptions,
    "small_autoencoder": SmallAutoencoderOptions,
    "sd_vae": StoredAutoencoderOptions,
}


def codec_options(values: dict[str, Any], path: str) -> CodecOptions:
    """The options of the codec that ``values["name"]`` names, checked.

    Raises:
        ConfigError: For an unknown codec, or an option that it does not have or that is impossible.
    """
    name = values.get("name")
    if not isinstance(name, str) or name not in CODECS:
        raise ConfigError(
            f"{path}.name must be one of {', '.join(CODECS)}, got {name!r}. Say codec=NAME.",
            key=f"{path}.name",
        )
    return build_settings(CODECS[name], values, path)


def _codec_key(values: dict[str, Any]) -> dict[str, Any]:
    """The options, with stored weights by their content: of a folder only the part that is read."""
    options = codec_options(values, "codec")
    keyed = key_values(options)
    if isinstance(options, StoredAutoencoderOptions):
        keyed["weights"] = content_key(options.weights, below=options.subfolder)
    return keyed


@dataclass(frozen=True)
class ImageCodecSettings:
    seed: int = setting(minimum=0)
    codec: dict[str, Any] = setting(as_key=_codec_key)
    sigma_data: float = setting(above=0.0)
    batch_size: int = setting(minimum=1, in_key=False)

    def options(self, path: str = "codec") -> CodecOptions:
        """The codec's own options, checked."""
        return codec_options(self.codec, path)

    def check(self, path: str) -> None:
        self.options(f"{path}.codec")


def _check_suppliers(settings: ImageCodecSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Sides that the codec can divide."""
    options, size = settings.options(f"{path}.codec"), suppliers["images"].settings.image_size
    factor = options.downsampling
    if factor is None or size % factor == 0:
        return
    name, value = (
        ("channels", options.channels) if isinstance(options, SmallAutoencoderOptions) else ("factor", factor)
    )
    raise ConfigError(
        f"{path}.codec.{name}={value} divides the sides of images by {factor}, but those of {suppliers['images'].name} "
        f"have {size} pixels. Set data.image_size to a multiple of {factor}, or codec.{name}.",
        key=f"{path}.codec.{name}",
    )


STAGE = Stage(
    kind="image_codec",
    settings=ImageCodecSettings,
    runs="fedsynth.stages.image_codec.run:run",
    side=Side.CLIENT,
    roles=("images",),
    accepts={"images": REAL_IMAGES},
    trains=True,
    check_suppliers=_check_suppliers,
)
