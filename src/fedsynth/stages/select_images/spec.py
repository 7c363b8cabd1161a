"""candidates → synthetic set that is shared: identity filter, then the best predicates (PSO-secure sharing, Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage
from fedsynth.selection.inputs import SelectionInputError
from fedsynth.selection.policy import guidance_schedule
from fedsynth.stages.image_set_kinds import CONDITION_FEATURES, REAL_IMAGES
from fedsynth.stages.reidentifier.supplier_checks import check_identity_split
from fedsynth.stages.synthesize_images.supplier_checks import check_guide, check_one_site

#: How images without an allowed candidate are made up for.
DROP, CLASS_BALANCED, TRUE_MIX = "drop", "class_balanced", "true_mix"
MASK, RELEASED_CODE, NO_FILTER = "mask", "released_code", "none"
#: What is released beside each image: the labels of its source, or also what C_r says of the image.
HARD, SOFT = "hard", "soft"
#: How the name of an arm ends that passed a filter, and of one that did not.
FILTERED, UNFILTERED = "filtered", "unfiltered"


@dataclass(frozen=True)
class SelectImagesSettings:
    seed: int = setting(minimum=0)
    arm: str = setting()
    filter: str = setting(one_of=(MASK, RELEASED_CODE, NO_FILTER))
    ranking: str = setting(one_of=("predicates", "first"))
    scope: str = setting(one_of=("source", "train"))
    threshold_rule: str = setting(one_of=("fixed", "fpr", "fnr", "youden"))
    threshold_value: float | None = setting(minimum=0.0, maximum=1.0)
    threshold_by: str = setting(one_of=("all", "class"))
    train_share: float = setting(minimum=0.0, below=1.0)
    guidance_weights: list[float] | None = setting(minimum=0.0)
    guidance_step: float | None = setting(above=0.0, remedy="The paper uses 0.1.")
    guidance_floor: float | None = setting(minimum=0.0)
    when_all_flagged: str = setting(one_of=(DROP, CLASS_BALANCED, TRUE_MIX))
    max_per_source: int = setting(minimum=1)
    images_per_source: int = setting(minimum=1)
    labels: str = setting(one_of=(HARD, SOFT))
    batch_norm: str = setting(one_of=("eval", "train"))
    release: bool = setting()
    num_shown: int = setting(minimum=0)
    batch_size: int = setting(minimum=1, in_key=False)
    sampling_batch_size: int = setting(minimum=1, in_key=False)

    def check(self, path: str) -> None:
        for name, fault in self._faults().items():
            raise ConfigError(f"{path}.{name} {fault}", key=f"{path}.{name}")
        try:
            self.schedule(1.0)
        except SelectionInputError as error:
            raise ConfigError(
                f"{path}.guidance_weights: {error} Set selection.guidance_weights, or guidance_step and guidance_floor.",
                key=f"{path}.guidance_weights",
            ) from error

    def schedule(self, first: float) -> tuple[float, ...]:
        """The guidance weights of the rounds, the first being that of the candidates."""
        return guidance_schedule(
            first, weights=self.guidance_weights, step=self.guidance_step, floor=self.guidance_floor
        )

    def _faults(self) -> dict[str, str]:
        """By setting what does not fit the others."""
        faults = {}
        if not self.arm or "/" in self.arm:
            faults["arm"] = f"must be a name without '/', got {self.arm!r}."
        if (self.threshold_rule == "youden") != (self.threshold_value is None):
            faults["threshold_value"] = (
                f"must be null for the rule youden and a number for the others, got {self.threshold_value} "
                f"for {self.threshold_rule}. Set selection.threshold_value."
            )
        if self.threshold_rule == "fixed" and self.threshold_value == 1:
            faults["threshold_value"] = (
                "must be below 1 for the rule fixed: no probability lies above 1, so nothing would be flagged. "
                "Say selection=none for a set without filter."
            )
        if self.filter == RELEASED_CODE and self.release:
            faults["release"] = (
                "must be false with filter=released_code: the released code only penalizes flagged candidates and may "
                "emit them. Use selection=default to share images."
            )
        if self.images_per_source > 1 and (self.when_all_flagged == DROP or self.filter == RELEASED_CODE):
            faults["images_per_source"] = (
                f"must be 1 with when_all_flagged=drop or filter=released_code, got {self.images_per_source}. "
                "Say selection.when_all_flagged=class_balanced."
            )
        if self.images_per_source > self.max_per_source:
            faults["max_per_source"] = (
                f"must be at least images_per_source={self.images_per_source}, got {self.max_per_source}."
            )
        if self.batch_norm == "train" and self.filter != RELEASED_CODE:
            faults["batch_norm"] = (
                "must be eval: with batch statistics a verdict depends on which images come together. Only "
                "filter=released_code may have it, to emulate that code."
            )
        elif self.batch_norm == "train" and self.scope == "train":
            faults["scope"] = (
                "must be source with batch_norm=train: that code compares a candidate with copies of its own source, so "
                "no other training image has an embedding to compare with. Set selection.scope=source."
            )
        if self.filter == NO_FILTER and self.arm.endswith(FILTERED) and not self.arm.endswith(UNFILTERED):
            faults["arm"] = (
                f"is {self.arm!r}, but filter=none filters nothing: every table would call this set filtered. Choose "
                "another selection for this stage, or give the arm another name."
            )
        return faults


def _check_suppliers(settings: SelectImagesSettings, suppliers: Mapping[str, Any], path: str) -> None:
    check_one_site(suppliers, path)
    _check_classifier(suppliers, path)
    if settings.filter != NO_FILTER:
        check_identity_split(suppliers, path)
    candidates = suppliers["candidates"]
    for role in ("denoiser", "codec", "images", "features", "guide"):
        made_with, given = candidates.inputs.get(role), getattr(suppliers.get(role), "name", None)
        # Without its guide a further round would be guided by another network than the first.
        if given != made_with and (given is not None or role == "guide"):
            raise ConfigError(
                f"{path}.inputs.{role} must be {made_with}, as of {candidates.name}, got {given}.",
                key=f"{path}.inputs.{role}",
            )
    for role, needed, why in (
        (
            "reidentifier",
            settings.filter != NO_FILTER,
            f"filter={settings.filter} asks it; say selection.filter=none",
        ),
        (
            "classifier",
            settings.ranking != "first",
            "ranking=predicates asks it; say selection.ranking=first",
        ),
        (
            "classifier",
            settings.labels == SOFT,
            "labels=soft asks it; say selection.labels=hard",
        ),
    ):
        if needed and role not in suppliers:
            raise ConfigError(
                f"{path}.inputs.{role} is missing: {why} to do without.", key=f"{path}.inputs.{role}"
            )
    rounds = settings.schedule(candidates.settings.guidance_weight)
    if settings.filter == NO_FILTER or len(rounds) == 1:
        return
    if candidates.settings.guidance == "none":
        raise ConfigError(
            f"{path}.guidance_weights: rounds with weights {', '.join(f'{w:g}' for w in rounds[1:])} need guidance, but "
            f"{candidates.name} has none. Say image_sampler.guidance=unconditional, or selection.guidance_weights=[].",
            key=f"{path}.guidance_weights",
        )
    check_guide(candidates.settings.guidance, suppliers, path)


def _check_classifier(suppliers: Mapping[str, Any], path: str) -> None:
    """C_r is trained and chosen by the real images of this very site: nothing else is the paper's C_r, and another
    site's would carry its records into what this one releases."""
    images, classifier = suppliers["images"].name, suppliers.get("classifier")
    for role in ("train", "images"):
        if classifier is not None and classifier.inputs.get(role) != images:
            raise ConfigError(
                f"{path}.inputs.classifier={classifier.name} must be C_r, trained and tested on {images!r}, but its "
                f"input {role!r} is {classifier.inputs.get(role)!r}. Name a tstr_densenet stage whose inputs "
                f"train and images are both {images}.",
                key=f"{path}.inputs.classifier",
            )


def _yields(settings: SelectImagesSettings, inputs: Mapping[str, Sensitivity]) -> Sensitivity:
    return Sensitivity.RELEASED if settings.release else Sensitivity.PRIVATE


def _price(settings: SelectImagesSettings) -> tuple[float, float] | None:
    return (math.inf, 0.0) if settings.release else None


def _uncovered(settings: SelectImagesSettings) -> tuple[str, ...]:
    if not settings.release:
        return ("everything: this arm is kept from the server",)
    how: tuple[str, ...] = (
        "the synthetic images: each is generated from a private image by networks trained on private images; no "
        "formal guarantee",
        "the number of images of each class: it tells how many training images of a class passed, or how many there are",
        "which images resemble each other: those made of one training image, or of one patient's",
        "the settings of the selection; sources, verdicts, thresholds and shares refused are not shown to a server",
    )
    if settings.labels == SOFT:
        how += ("the soft labels: classifiers trained on the private images wrote them; no formal guarantee",)
    is_refilled = settings.when_all_flagged != DROP and settings.max_per_source > 1
    if settings.images_per_source > 1 or (settings.filter == MASK and is_refilled):
        how += (
            "what several images of one training image tell together: the filter and audits judge each alone",
        )
    if settings.filter == NO_FILTER:
        return (*how, "no identity filter: images may show the people of the training set")
    return (
        *how,
        "their selection by networks trained on the private images; failure to re-identify by one network is neither "
        "necessary nor sufficient for privacy",
        "an identity network trained on images of several sites pools private images between clients beforehand",
    )


STAGE = Stage(
    kind="select_images",
    settings=SelectImagesSettings,
    runs="fedsynth.stages.select_images.run:run",
    side=Side.CLIENT,
    roles=("candidates", "denoiser", "codec", "images"),
    optional_roles=("features", "guide", "classifier", "reidentifier"),
    accepts={
        "candidates": ("synthesize_images",),
        "denoiser": ("diadm",),
        "codec": ("image_codec",),
        "images": REAL_IMAGES,
        "features": CONDITION_FEATURES,
        "guide": ("diadm",),
        "classifier": ("tstr_densenet",),
        "reidentifier": ("reidentifier",),
    },
    yields=_yields,
    price=_price,
    uncovered=_uncovered,
    keeps_private=True,  # sources, verdicts, thresholds: for audits and reports
    trains=True,  # every process scores its share of the shards
    check_suppliers=_check_suppliers,
)
