"""The thresholds of the identity filter, from held-out pairs and held-out images, and what errors they imply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from fedsynth.attacks.reidentification import OperatingPoint, class_operating_points, operating_point
from fedsynth.selection.identity_filter import exceedance_threshold, row_thresholds
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.select_images.spec import SelectImagesSettings


@dataclass(frozen=True, eq=False)
class Thresholds:
    """What is flagged lies strictly above.

    Attributes:
        source: For P of a candidate and its own source, one a training image.
        train: For the largest P over all training images; None if only the source is looked at.
        notes: A row a threshold for the report.
    """

    source: Float[Tensor, " n"]
    train: float | None
    notes: list[dict[str, Any]]


def choose_thresholds(
    settings: SelectImagesSettings,
    calibration: Mapping[str, Tensor],
    images: ImageSet,
    held_out: Callable[[], Float[Tensor, " v"]],
) -> Thresholds:
    """The thresholds that the settings ask for.

    Args:
        settings: Rule, value, one threshold or one a class, scope.
        calibration: ``probability``, ``is_same`` and ``label`` of the identity network's held-out pairs.
        images: The training images.
        held_out: Gives, if asked, the largest P over the training images of each held-out real image.

    Raises:
        EvaluationError: If the held-out pairs do not allow the rule, e.g. a class without pairs.
        SelectionInputError: If no threshold below 1 flags few enough held-out images.
    """
    rule, value = settings.threshold_rule, settings.threshold_value
    pairs = calibration["probability"], calibration["is_same"]
    if settings.threshold_by == "class":
        points = class_operating_points(*pairs, calibration["label"], images.classes, rule, value)  # type: ignore[arg-type]
        by_class = [points[name].threshold for name in images.classes]
    else:
        points = {"all": operating_point(*pairs, rule, value)}  # type: ignore[arg-type]
        by_class = [points["all"].threshold] * images.num_classes
    notes = [_row(name, point) for name, point in points.items()]
    train = None
    if settings.scope == "train":
        # The largest of thousands of pairs reaches any pair threshold: other images set this one. fidelity: filter-scope
        train = exceedance_threshold(largest := held_out(), settings.train_share)
        flagged = float((largest.double() > train).double().mean())
        notes.append(
            {
                "compared_with": "any training image",
                "class": "all",
                "rule": "held-out images",
                "num_held_out": len(largest),
                "value": settings.train_share,
                "threshold": train,
                "fpr": flagged,
            }
        )
    return Thresholds(row_thresholds(by_class, images.targets()), train, notes)


def _row(name: str, point: OperatingPoint) -> dict[str, Any]:
    rates = {
        key: number
        for rate in ("fpr", "fnr")
        for key, number in (
            (rate, getattr(point, rate).share),
            (f"{rate}_low", getattr(point, rate).low),
            (f"{rate}_high", getattr(point, rate).high),
        )
    }
    chosen = {"rule": point.rule, "value": point.value, "threshold": point.threshold}
    return {"compared_with": "own source", "class": name, **chosen, **rates}
