"""latents, conditions → EDM denoiser: by pseudo-feature (DiADM), by class (EDM-2), or unconditional."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.image_set_kinds import CONDITION_FEATURES, REAL_IMAGES
from fedsynth.stages.same_images import check_made_of_same_images

RAW = 0.0
"""The width that names the trained weights themselves: an average of no length."""


@dataclass(frozen=True)
class DiADMSettings:
    seed: int = setting(minimum=0)
    condition: str = setting(one_of=("none", "class", "feature"))
    style: str = setting(one_of=("plain", "magnitude_preserving"))
    channels: int = setting(minimum=1)
    multipliers: list[int] = setting(minimum=1)
    blocks_per_level: int = setting(minimum=1)
    bottom_blocks: int = setting(minimum=1)
    attention_levels: list[int] = setting(minimum=0)
    head_channels: int = setting(minimum=1)
    dropout: float = setting(minimum=0.0, below=1.0)
    uncertainty: bool = setting()
    # ln σ; outside of these bounds σ and its square leave single precision.
    noise_mean: float = setting(minimum=-10.0, maximum=10.0, remedy="EDM2's is -0.4.")
    noise_std: float = setting(minimum=0.0, maximum=10.0, remedy="EDM2's is 1.")
    condition_dropout: float = setting(minimum=0.0, below=1.0)
    ema_widths: list[float] = setting(above=0.0, maximum=12**-0.5, remedy="EDM2's are 0.05 and 0.10.")
    ema_width: float = setting(minimum=0.0, remedy="0 takes the raw weights, as the released code does.")
    earlier_fraction: float = setting(above=0.0, maximum=1.0)
    learning_rate: float = setting(above=0.0, maximum=10.0)
    adam_betas: list[float] = setting(minimum=0.0, below=1.0)
    ramp_kimg: float = setting(minimum=0.0)
    decay_kimg: float = setting(minimum=0.0, remedy="0 never lowers the rate.")
    batch_size: int = setting(minimum=1)
    kimg: int = setting(minimum=1)
    steps_per_epoch: int = setting(minimum=1)
    num_validation_images: int = setting(minimum=0)
    validation_sigmas: list[float] = setting(above=0.0)
    init_weights: str | None = setting(is_file=True)

    def check(self, path: str) -> None:
        def refuse(name: str, problem: str) -> None:
            raise ConfigError(f"{path}.{name} {problem}", key=f"{path}.{name}")

        if not self.multipliers:
            refuse("multipliers", "must hold one number a level, got []. The default is [1, 2].")
        if self.attention_levels and max(self.attention_levels) >= len(self.multipliers):
            refuse(
                "attention_levels",
                f"must name levels below {len(self.multipliers)}, the number of multipliers, got "
                f"{list(self.attention_levels)}. Set image_network.attention_levels.",
            )
        if len(self.adam_betas) != 2:
            refuse("adam_betas", f"must be two numbers, got {list(self.adam_betas)}. EDM2: [0.9, 0.99].")
        if not self.ema_widths or len(set(self.ema_widths)) < len(self.ema_widths):
            refuse("ema_widths", f"must hold different widths, at least one, got {list(self.ema_widths)}.")
        if self.ema_width != RAW and self.ema_width not in self.ema_widths:
            refuse(
                "ema_width",
                f"must be one of ema_widths={list(self.ema_widths)}, or 0 for the raw weights, got {self.ema_width}. "
                "Set image_network.ema_width.",
            )
        if self.condition == "none" and self.condition_dropout > 0:
            refuse(
                "condition_dropout",
                f"must be 0 for condition=none, got {self.condition_dropout}: there is no condition to drop.",
            )
        if self.num_validation_images and not self.validation_sigmas:
            refuse(
                "validation_sigmas", "must hold at least one noise level, got []. Or num_validation_images=0."
            )
        if self.init_weights is not None and not Path(self.init_weights).expanduser().is_file():
            refuse(
                "init_weights", f"must be a safetensors file, got {self.init_weights!r}, which is not there."
            )


def _check_suppliers(settings: DiADMSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Features if and only if they are the condition; all of the same images; latents that can be halved."""
    key = f"{path}.inputs.features"
    if settings.condition == "feature" and "features" not in suppliers:
        raise ConfigError(f"{key} is missing: condition=feature needs the pseudo-features.", key=key)
    if settings.condition != "feature" and "features" in suppliers:
        raise ConfigError(
            f"{key} is given ({suppliers['features'].name}), but condition={settings.condition} does not read it. "
            f"Set {key}=null.",
            key=key,
        )
    check_made_of_same_images(suppliers, ("codec", "features"), path)
    factor, size = suppliers["codec"].settings.options().downsampling, suppliers["images"].settings.image_size
    halvings = len(settings.multipliers) - 1
    if factor is not None and size // factor % 2**halvings:
        raise ConfigError(
            f"{path}.multipliers={list(settings.multipliers)} need latents whose sides {2**halvings} divides, but "
            f"theirs are {size // factor} (data.image_size={size}, divided by {factor} by {suppliers['codec'].name}). "
            f"Set data.image_size to a multiple of {factor * 2**halvings}, use fewer image_network.multipliers, or "
            "another codec.factor or codec.",
            key=f"{path}.multipliers",
        )


STAGE = Stage(
    kind="diadm",
    settings=DiADMSettings,
    runs="fedsynth.stages.diadm.run:run",
    side=Side.CLIENT,
    roles=("codec", "images"),
    optional_roles=("features",),
    accepts={"codec": ("image_codec",), "images": REAL_IMAGES, "features": CONDITION_FEATURES},
    trains=True,
    check_suppliers=_check_suppliers,
)
