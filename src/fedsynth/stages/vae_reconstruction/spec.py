"""images, codec → what the codec leaves of the training images: the bound of what diffusion on its latents can show."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.image_set_kinds import REAL_IMAGES
from fedsynth.stages.same_images import check_made_of_same_images


@dataclass(frozen=True)
class VaeReconstructionSettings:
    batch_size: int = setting(minimum=1, in_key=False)


STAGE = Stage(
    kind="vae_reconstruction",
    settings=VaeReconstructionSettings,
    runs="fedsynth.stages.vae_reconstruction.run:run",
    side=Side.CLIENT,
    roles=("images", "codec"),
    accepts={"images": REAL_IMAGES, "codec": ("image_codec",)},
    check_suppliers=lambda settings, suppliers, path: check_made_of_same_images(suppliers, ("codec",), path),
)
