"""released images → what was tested and what came out: fidelity, diversity, re-identification, singling out (T1–T5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.image_set_kinds import MADE_IMAGES, REAL_IMAGES
from fedsynth.stages.reidentifier.supplier_checks import check_identity_split
from fedsynth.stages.same_images import check_made_of_same_images

RULES = ("fixed", "fpr", "fnr", "youden")
#: Real images of other patients, for controls: without val if a network was tuned on it.
HELD_OUT = {"test": ("test",), "val_test": ("val", "test")}

#: A union of several sites: its rows name images of different sites.
OF_SEVERAL_SITES = ("data_sharing",)


@dataclass(frozen=True)
class AuditImagesSettings:
    seed: int = setting(minimum=0)
    arm: str = setting()
    max_released: int | None = setting(minimum=2, remedy="Null takes all released images.")
    max_train: int | None = setting(minimum=2, remedy="Null takes all training images.")
    held_out: str = setting(one_of=tuple(HELD_OUT))
    num_components: int = setting(minimum=1)
    nearest_k: int = setting(minimum=1)
    irs_bounds: str = setting(one_of=("exact", "normal"))
    irs_tail: float = setting(above=0.0, below=0.5)
    num_radii: int = setting(minimum=2)
    isolation_radius: float = setting(above=0.0)
    confidence: float = setting(above=0.0, below=1.0)
    threshold_rule: str = setting(one_of=RULES)
    threshold_value: float | None = setting(minimum=0.0, maximum=1.0)
    similarity_level: float = setting(above=0.0, below=1.0)
    dp_epsilon: float | None = setting(above=0.0, remedy="Null leaves the private control out.")
    torchmetrics_fid: bool = setting()
    batch_size: int = setting(minimum=1, in_key=False)

    def check(self, path: str) -> None:
        if (self.threshold_rule == "youden") != (self.threshold_value is None):
            wanted = "null" if self.threshold_rule == "youden" else "a number in [0, 1]"
            raise ConfigError(
                f"{path}.threshold_value must be {wanted} with threshold_rule={self.threshold_rule}, got "
                f"{self.threshold_value}.",
                key=f"{path}.threshold_value",
            )
        for name in ("max_released", "max_train"):
            value = getattr(self, name)
            if value is not None and value <= self.nearest_k:
                raise ConfigError(
                    f"{path}.{name} must be above nearest_k={self.nearest_k}, got {value}: precision and coverage need "
                    "that many neighbors.",
                    key=f"{path}.{name}",
                )


def _check_suppliers(settings: AuditImagesSettings, suppliers: Mapping[str, Any], path: str) -> None:
    # A union holds the images of several sites; its sources are not looked at.
    made = [
        role
        for role in ("released", "independent")
        if role in suppliers and suppliers[role].stage.kind not in OF_SEVERAL_SITES
    ]
    check_made_of_same_images(suppliers, ("features", "classifier", *made), path)
    check_identity_split(suppliers, path)
    if "classifier" in suppliers and suppliers["classifier"].inputs["train"] != suppliers["images"].name:
        raise ConfigError(
            f"{path}.inputs.classifier must be trained on the real images {suppliers['images'].name!r}, got "
            f"{suppliers['classifier'].name!r}, trained on {suppliers['classifier'].inputs['train']!r}. Name C_r.",
            key=f"{path}.inputs.classifier",
        )
    if suppliers["features"].settings.encoder == "classifier" and "classifier" not in suppliers:
        raise ConfigError(
            f"{path}.inputs.classifier is missing: the features of {suppliers['features'].name} are those of a "
            "classifier, and released images must go through the same one. Name its tstr_densenet stage.",
            key=f"{path}.inputs.classifier",
        )
    used = suppliers["features"].inputs.get("classifier")
    if used and used != suppliers["classifier"].name:
        raise ConfigError(
            f"{path}.inputs.classifier must be {used!r}, whose features {suppliers['features'].name} are, got "
            f"{suppliers['classifier'].name!r}: released images must go through the same network.",
            key=f"{path}.inputs.classifier",
        )


STAGE = Stage(
    kind="audit_images",
    settings=AuditImagesSettings,
    runs="fedsynth.stages.audit_images.run:run",
    side=Side.AUDITOR,
    roles=("released", "images", "features"),
    optional_roles=("reidentifier", "classifier", "independent"),
    accepts={
        "released": MADE_IMAGES,
        "images": REAL_IMAGES,
        "features": ("pseudo_features",),
        "reidentifier": ("reidentifier",),
        "classifier": ("tstr_densenet",),
        "independent": MADE_IMAGES,
    },
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("every number of the audit: computed on private images",),
    check_suppliers=_check_suppliers,
)
