"""candidates → the real training images they were made of, for comparisons at equal size (auditor only)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.image_set_kinds import REAL_IMAGES
from fedsynth.stages.same_images import check_made_of_same_images


@dataclass(frozen=True)
class SourceImagesSettings:
    """There is nothing to set."""


STAGE = Stage(
    kind="source_images",
    settings=SourceImagesSettings,
    runs="fedsynth.stages.source_images.run:run",
    side=Side.AUDITOR,
    roles=("images", "candidates"),
    accepts={"images": REAL_IMAGES, "candidates": ("synthesize_images",)},
    yields=always(Sensitivity.PRIVATE),
    check_suppliers=lambda settings, suppliers, path: check_made_of_same_images(
        suppliers, ("candidates",), path
    ),
)
