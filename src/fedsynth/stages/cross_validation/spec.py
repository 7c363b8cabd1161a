"""two to twelve training sets → a score of each in every fold on the same real images, ranks and tests over folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.compared_systems import check_own_arms
from fedsynth.stages.image_set_kinds import IMAGE_SETS, REAL_IMAGES
from fedsynth.stages.tstr_densenet.classifier_settings import ClassifierSettings

FURTHER = (
    "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
)  # fmt: skip
METHODS = ("first", "second", *FURTHER)
IMAGE, PATIENT = "image", "patient"
#: Stages whose images come without the rows they were made of.
UNIONS = ("data_sharing",)


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
    """Every method made of the same real images, by a name of its own."""
    methods = {role: suppliers[role] for role in METHODS if role in suppliers}
    _check_sources(settings, suppliers["images"].name, methods, path)
    if settings.arms is None:
        check_own_arms(
            methods, path, "set", arm_of=lambda one: arm_of(one.settings, one.name),
            remedy=f"Name them all: {path}.arms=[…].",
        )  # fmt: skip
    elif len(settings.arms) != len(methods) or len(set(settings.arms)) < len(methods):
        raise ConfigError(
            f"{path}.arms must name the {len(methods)} methods, each differently, got {settings.arms}.",
            key=f"{path}.arms",
        )


def _check_sources(
    settings: CrossValidationSettings, images: str, methods: Mapping[str, Any], path: str
) -> None:
    """A method whose images are not known to be made of rows of ``images`` would leave out others than the rest."""
    for role, one in methods.items():
        if one.stage.kind in UNIONS:
            fault = (
                f"a union ({one.stage.kind}), which tells nobody what its images were made of: neither by image nor by "
                "patient would a fold leave out what it leaves out of the other methods. Name the set of one site; "
                "compare a union by tstr_densenet, site_test and auroc_gap"
            )
        elif one.name != images and one.inputs.get("images") != images:
            fault = (
                f"which is made of {one.inputs.get('images') or 'its own images'}: its rows are other images than those "
                f"of {images}, and so would its folds be. Name a set of the same site"
            )
        else:
            continue
        raise ConfigError(
            f"{path}.inputs.{role} must name {images} or a set made of it, for folds by {settings.unit} "
            f"(unit={settings.unit}), got {one.name}, {fault}.",
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
