"""two to twelve training sets → a score of each in every fold on the same real images, ranks and tests over folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.image_set_kinds import IMAGE_SETS, REAL_IMAGES
from fedsynth.stages.tstr_densenet.classifier_settings import ClassifierSettings

FURTHER = (
    "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
)  # fmt: skip
METHODS = ("first", "second", *FURTHER)
IMAGE, PATIENT = "image", "patient"


@dataclass(frozen=True)
class CrossValidationSettings(ClassifierSettings):
    seed: int = setting(minimum=0)
    num_folds: int = setting(minimum=2)
    unit: str = setting(one_of=(IMAGE, PATIENT))
    alpha: float = setting(above=0.0, below=1.0)
    arms: list[str] | None = setting(remedy="Null takes the arm of each stage, or its name.")


def arm_of(settings: Any, name: str) -> str:
    """What a method is called: the arm its stage was given, or the name of the stage."""
    arm = settings.get("arm") if isinstance(settings, Mapping) else getattr(settings, "arm", None)
    return name if arm is None else str(arm)


def _check_suppliers(settings: CrossValidationSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Every method by a name of its own."""
    roles = [role for role in METHODS if role in suppliers]
    if settings.arms is not None:
        if len(settings.arms) != len(roles) or len(set(settings.arms)) < len(roles):
            raise ConfigError(
                f"{path}.arms must name the {len(roles)} methods, each differently, got {settings.arms}.",
                key=f"{path}.arms",
            )
        return
    seen: dict[str, str] = {}
    for role in roles:
        arm = arm_of(suppliers[role].settings, suppliers[role].name)
        other = seen.setdefault(arm, role)
        if other != role:
            raise ConfigError(
                f"{path}.inputs.{role} must name a set with an arm of its own, got {suppliers[role].name}, whose arm "
                f"{arm!r} is also that of {other}. Name them all: {path}.arms=[…].",
                key=f"{path}.inputs.{role}",
            )


STAGE = Stage(
    kind="cross_validation",
    settings=CrossValidationSettings,
    runs="fedsynth.stages.cross_validation.run:run",
    side=Side.AUDITOR,
    roles=("images", "first", "second"),
    optional_roles=FURTHER,
    accepts={"images": REAL_IMAGES, **dict.fromkeys(METHODS, IMAGE_SETS)},
    yields=always(Sensitivity.PRIVATE),
    trains=True,
    uncovered=lambda settings: ("every number of the comparison: computed on private images",),
    check_suppliers=_check_suppliers,
)
