"""Whether the identity filter recognizes anybody: one that does not would release a set as filtered that is not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.stages.select_images.spec import MASK, SelectImagesSettings
from fedsynth.stages.select_images.thresholds import Thresholds, error_rates_by_class

log = logging.getLogger(__name__)

#: A filter that misses more of the pairs of one person than this, beyond chance, is none.
# fidelity: filter-recognizes
MOST_MISSED = 0.95
TRAIN_IT = (
    "Train the identity network longer (reidentification.max_epochs) or with another reidentification.loss"
)


def equal_probabilities(calibration: Mapping[str, Tensor]) -> str | None:
    """What is wrong with a network that gives every pair the same probability; None if it does not.

    Args:
        calibration: ``probability`` [pair] of the held-out pairs that choose thresholds, ``is_same`` beside it.
    """
    probability = calibration["probability"]
    if bool((probability != probability[0]).any()):
        return None
    return (
        f"the identity network gives all {len(probability)} validation pairs the probability "
        f"{float(probability[0]):.4g}, so that no threshold tells one person from two. {TRAIN_IT}"
    )


def missed_everybody(
    calibration: Mapping[str, Tensor], thresholds: Thresholds, classes: Sequence[str]
) -> str | None:
    """What is wrong with thresholds that surely miss more than ``MOST_MISSED`` of the pairs of one person.

    Surely: the lower limit of the 95 % Wilson interval of the false-negative rate lies above it, for the threshold of
    all classes or, with one a class, for that of any. Few pairs are never sure. That a filter passes does not make it
    good: it may still miss 19 of 20 persons, and synthetic images are other pairs than these.

    Args:
        calibration: ``probability``, ``is_same`` and ``label`` of the pairs that chose the thresholds.
        thresholds: Of the filter. Whatever exceeds one of its two is flagged, so the lower one counts.
        classes: Names of the classes, in the order of ``label``.
    """
    most = 1.0 if thresholds.train is None else thresholds.train
    used = {
        row["class"]: min(row["threshold"], most)
        for row in thresholds.notes
        if row["compared_with"] == "own source"
    }
    told = [
        f"{row['threshold']:.4g} ({row['class']}) misses {row['fnr']:.1%} of {row['one_person']} validation pairs of "
        f"one person (FNR, 95 % interval {row['fnr_low']:.1%} to {row['fnr_high']:.1%})"
        for row in error_rates_by_class({"validation": calibration}, used, classes)
        if row["fnr_low"] is not None and row["fnr_low"] > MOST_MISSED
    ]
    if not told:
        return None
    return (
        f"the threshold {'; the threshold '.join(told)}. {TRAIN_IT}, choose a lower threshold "
        "(selection.threshold_rule, selection.threshold_value)"
    )


def refuse_to_release(settings: SelectImagesSettings, fault: str | None, stage: str) -> None:
    """End a stage that would release a set as filtered that is not; only warn of one that keeps it.

    Args:
        settings: ``filter`` and ``release``.
        fault: Of the filter; None lets it pass.
        stage: Name of the stage, for messages.

    Raises:
        DataError: What is wrong, and what to do.
    """
    if fault is None:
        return
    if settings.release and settings.filter == MASK:
        raise DataError(
            f"stages.{stage}: the identity filter recognizes almost nobody, and its set is not released as filtered: "
            f"{fault}, or say selection.release=false to look at the set."
        )
    log.warning("stages.%s: the identity filter recognizes almost nobody: %s.", stage, fault)
