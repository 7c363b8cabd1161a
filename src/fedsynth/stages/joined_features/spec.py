"""features + classifier → one condition of both: what an image looks like, and what the classifier sees in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.image_set_kinds import REAL_IMAGES
from fedsynth.stages.same_images import check_made_of_same_images


@dataclass(frozen=True)
class JoinedFeaturesSettings:
    classifier_share: float = setting(
        above=0.0, below=1.0, remedy="0 would be the features alone: connect their stage instead."
    )
    batch_size: int = setting(minimum=1, in_key=False)


def _check_suppliers(settings: JoinedFeaturesSettings, suppliers: Mapping[str, Any], path: str) -> None:
    check_made_of_same_images(suppliers, ("features", "classifier"), path)
    trained_on = suppliers["classifier"].inputs["train"]
    if trained_on != suppliers["images"].name:
        raise ConfigError(
            f"{path}.inputs.classifier must be trained on the real images of {suppliers['images'].name}, got "
            f"{suppliers['classifier'].name}, which is trained on {trained_on}.",
            key=f"{path}.inputs.classifier",
        )


STAGE = Stage(
    kind="joined_features",
    settings=JoinedFeaturesSettings,
    runs="fedsynth.stages.joined_features.run:run",
    side=Side.CLIENT,
    roles=("features", "images", "classifier"),
    accepts={"features": ("pseudo_features",), "images": REAL_IMAGES, "classifier": ("tstr_densenet",)},
    check_suppliers=_check_suppliers,
)
