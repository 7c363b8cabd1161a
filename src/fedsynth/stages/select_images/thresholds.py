"""The thresholds of the identity filter, from held-out pairs and held-out images, and what errors they imply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, ones_like

from fedsynth.attacks.reidentification import OperatingPoint, class_operating_points, operating_point
from fedsynth.attacks.residual_risk import wilson_proportion
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
        rates: Error rates of the thresholds for pairs, see ``error_rates_by_class``.
        fault: In words why this filter filters next to nothing; None if it does filter.
    """

    source: Float[Tensor, " n"]
    train: float | None
    notes: list[dict[str, Any]]
    rates: list[dict[str, Any]] = field(default_factory=list)
    fault: str | None = None


def choose_thresholds(
    settings: SelectImagesSettings,
    calibration: Mapping[str, Tensor],
    test: Mapping[str, Tensor],
    images: ImageSet,
    held_out: Callable[[], Float[Tensor, " v"]],
) -> Thresholds:
    """The thresholds that the settings ask for.

    Args:
        settings: Rule, value, one threshold or one a class, scope.
        calibration: ``probability``, ``is_same`` and ``label`` of the identity network's held-out pairs, which choose.
        test: The same of pairs that chose nothing, for error rates.
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
    limits = {name: points.get(name, points.get("all")) for name in (*points, *images.classes)}
    used = {name: point.threshold for name, point in limits.items() if point is not None}
    rates = error_rates_by_class({"validation": calibration, "test": test}, used, images.classes)
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
    return Thresholds(row_thresholds(by_class, images.targets()), train, notes, rates)


def error_rates_by_class(
    pairs: Mapping[str, Mapping[str, Tensor]], thresholds: Mapping[str, float], classes: Sequence[str]
) -> list[dict[str, Any]]:
    """What thresholds do to held-out pairs of each class: a rate stated for all classes need not hold in any.

    Args:
        pairs: ``probability``, ``is_same`` and ``label`` of the first image, by the name of the set of pairs. Rates on
            the pairs that chose a threshold are a little too good; those of a test set are not.
        thresholds: By class, or ``all`` for pairs of all classes together.
        classes: Names of the classes or labels, in the order of ``label``.

    Returns:
        A row a set and threshold: ``pairs``, ``class``, ``threshold``; ``fpr`` (pairs of two persons above it) and
        ``fnr`` (pairs of one person that are not), each with ``_low`` and ``_high`` of the Wilson interval, which
        takes pairs as independent; the numbers ``two_persons`` and ``one_person``. A rate without pairs is None.
    """
    rows = []
    for held, values in pairs.items():
        same, label = values["is_same"] == 1, values["label"]
        for name, threshold in thresholds.items():
            # In float64, as the filter compares.
            above = values["probability"].double() > threshold
            if name == "all":
                own = ones_like(same)
            else:
                number = list(classes).index(name)
                own = label == number if label.ndim == 1 else label[:, number] == 1
            row: dict[str, Any] = {"pairs": held, "class": name, "threshold": threshold}
            row |= _rate("fpr", above[own & ~same]) | {"two_persons": int((own & ~same).sum())}
            row |= _rate("fnr", ~above[own & same]) | {"one_person": int((own & same).sum())}
            rows.append(row)
    return rows


def _rate(name: str, is_error: Tensor) -> dict[str, float | None]:
    if not len(is_error):
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    found = wilson_proportion(int(is_error.sum()), len(is_error))
    return {name: found.share, f"{name}_low": found.low, f"{name}_high": found.high}


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
