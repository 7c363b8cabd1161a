"""classifiers of all seeds, real images of any site → their AUROC on the test images of that site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.image_set_kinds import REAL_IMAGES


@dataclass(frozen=True)
class SiteTestSettings:
    arm: str = setting()
    num_bootstrap: int = setting(minimum=1)
    evaluation_batch_size: int = setting(minimum=1, in_key=False)


def _check_suppliers(settings: SiteTestSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """The arm of the classifiers, and images they were not tested on already."""
    classifier, images = suppliers["classifier"], suppliers["images"]
    if settings.arm != classifier.settings.arm:
        raise ConfigError(
            f"{path}.arm must be {classifier.settings.arm}, that of {classifier.name}, got {settings.arm!r}.",
            key=f"{path}.arm",
        )
    if classifier.inputs["images"] == images.name:
        raise ConfigError(
            f"{path}.inputs.images must name another site than {images.name}, on which {classifier.name} itself states "
            "its test numbers.",
            key=f"{path}.inputs.images",
        )


STAGE = Stage(
    kind="site_test",
    settings=SiteTestSettings,
    runs="fedsynth.stages.site_test.run:run",
    side=Side.AUDITOR,
    roles=("classifier", "images"),
    accepts={"classifier": ("tstr_densenet",), "images": REAL_IMAGES},
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("every number of the test: computed on private images",),
    check_suppliers=_check_suppliers,
)
