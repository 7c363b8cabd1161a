"""denoiser + images → candidates: b latent images for each training image (PSO-secure sharing, Section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.image_set_kinds import CONDITION_FEATURES, REAL_IMAGES
from fedsynth.stages.synthesize_images.supplier_checks import check_ema_width, check_guide, check_one_site

GUIDANCE = ("none", "unconditional", "earlier", "both")


@dataclass(frozen=True)
class SynthesizeImagesSettings:
    seed: int = setting(minimum=0)
    num_sources: int | None = setting(minimum=1, remedy="Null takes every training image.")
    num_candidates: int = setting(minimum=1, remedy="The paper uses 32.")
    solver: str = setting(one_of=("euler", "heun", "dpmpp_2m"))
    num_steps: int = setting(minimum=2)
    sigma_min: float = setting(above=0.0)
    sigma_max: float = setting(above=0.0)
    rho: float = setting(above=0.0)
    guidance: str = setting(one_of=GUIDANCE)
    guidance_weight: float = setting(minimum=0.0, remedy="1 is unguided; the paper uses 1.2.")
    guidance_interval: list[float] | None = setting(minimum=0.0, remedy="Null guides at all noise levels.")
    ema_width: float | None = setting(minimum=0.0, remedy="Null: the denoiser's own; 0: its raw weights.")
    shard_size: int = setting(minimum=1)
    batch_size: int = setting(minimum=1, in_key=False)

    def check(self, path: str) -> None:
        if self.sigma_min >= self.sigma_max:
            raise ConfigError(
                f"{path}.sigma_min must be below sigma_max={self.sigma_max:g}, got {self.sigma_min:g}. "
                "Set image_sampler.sigma_min.",
                key=f"{path}.sigma_min",
            )
        if self.guidance == "none" and self.guidance_weight != 1:
            raise ConfigError(
                f"{path}.guidance_weight must be 1 without guidance, got {self.guidance_weight:g}. Say "
                "image_sampler.guidance=unconditional, earlier or both.",
                key=f"{path}.guidance_weight",
            )
        interval = self.guidance_interval
        if interval is not None and not (len(interval) == 2 and interval[0] < interval[1]):
            raise ConfigError(
                f"{path}.guidance_interval must be two rising noise levels or null, got {interval}.",
                key=f"{path}.guidance_interval",
            )


def _check_suppliers(settings: SynthesizeImagesSettings, suppliers: Mapping[str, Any], path: str) -> None:
    check_one_site(suppliers, path)
    check_ema_width(settings.ema_width, settings.guidance, suppliers, path)
    if settings.guidance_weight != 1:
        check_guide(settings.guidance, suppliers, path)


STAGE = Stage(
    kind="synthesize_images",
    settings=SynthesizeImagesSettings,
    runs="fedsynth.stages.synthesize_images.run:run",
    side=Side.CLIENT,
    roles=("denoiser", "codec", "images"),
    optional_roles=("features", "guide"),
    accepts={
        "denoiser": ("diadm",),
        "codec": ("image_codec",),
        "images": REAL_IMAGES,
        "features": CONDITION_FEATURES,
        "guide": ("diadm",),
    },
    trains=True,  # every process makes its share of the shards
    check_suppliers=_check_suppliers,
)
