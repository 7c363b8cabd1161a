"""What is measured of a trained identity network, as metrics and as a table of operating points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, cat

from fedsynth.attacks.reidentification import (
    OperatingPoint,
    Rule,
    class_operating_points,
    error_rates,
    operating_point,
    pair_auroc_interval,
)
from fedsynth.attacks.residual_risk import Proportion
from fedsynth.evaluation.calibration import expected_calibration_error
from fedsynth.evaluation.checks import EvaluationError
from fedsynth.pipeline.stage import Metric
from fedsynth.seeding import generator
from fedsynth.stages.reidentifier.held_out import HeldOutPairs
from fedsynth.stages.reidentifier.spec import ReidentifierSettings

ARM = "reidentifier"
#: Shown beside the configured rule, so that a threshold can be chosen from the report.
SHOWN: tuple[tuple[Rule, float | None], ...] = (
    ("fixed", 0.5), ("youden", None),
    ("fpr", 0.01), ("fpr", 0.05), ("fpr", 0.1), ("fpr", 0.2), ("fnr", 0.1), ("fnr", 0.05),
)  # fmt: skip


def balanced_calibration_error(probability: Float[Tensor, " pair"], pairs: HeldOutPairs) -> float:
    """ECE with both kinds of pairs weighing the same, as the probability is meant.

    Pairs of one person are repeated; exact where every one has equally many pairs of two persons.
    """
    ones = pairs.is_same == 1
    repeats = max(1, round(int((~ones).sum()) / int(ones.sum())))
    rows = cat([ones.nonzero().flatten().repeat(repeats), (~ones).nonzero().flatten()])
    return expected_calibration_error(probability[rows], pairs.is_same[rows])


def metrics(
    settings: ReidentifierSettings,
    validation: tuple[HeldOutPairs, Float[Tensor, " pair"]],
    test: tuple[HeldOutPairs, Float[Tensor, " pair"]],
) -> list[Metric]:
    """AUROC, calibration, and the configured threshold with its error rates on validation and test pairs."""
    seed, rows = settings.seed, []
    for split, (pairs, probability) in (("val", validation), ("test", test)):
        stream = generator(seed, "reidentifier", "bootstrap", split)
        found = pair_auroc_interval(
            probability, pairs.is_same, pairs.patient, generator=stream, num_replicates=settings.num_bootstrap
        )
        rows.append(Metric(ARM, f"{split}/auroc", found.estimate, seed, found.low, found.high))
        rows.append(Metric(ARM, f"{split}/ece", balanced_calibration_error(probability, pairs), seed))
    chosen = configured_point(settings, *validation)
    rows.append(Metric(ARM, "threshold", chosen.threshold, seed))
    tested = error_rates(test[1], test[0].is_same, chosen.threshold)
    for prefix, point in (("", chosen), ("test/", tested)):
        rows += [_rate(f"{prefix}fnr", point.fnr, seed), _rate(f"{prefix}fpr", point.fpr, seed)]
    return rows


def cannot_tell(measured: Sequence[Metric]) -> bool:
    """Whether validation pairs of one person score no higher than those of two, of the rows of ``metrics``.

    Platt's logistic then has scale 0, and every pair the same probability.
    """
    return next(row.value for row in measured if row.metric == "val/auroc") <= 0.5


def configured_point(
    settings: ReidentifierSettings, pairs: HeldOutPairs, probability: Float[Tensor, " pair"]
) -> OperatingPoint:
    """The threshold of ``threshold_rule`` and ``threshold_value``, chosen on these pairs."""
    rule: Any = settings.threshold_rule
    return operating_point(probability, pairs.is_same, rule, settings.threshold_value)


def operating_table(
    settings: ReidentifierSettings,
    validation: tuple[HeldOutPairs, Float[Tensor, " pair"]],
    test: tuple[HeldOutPairs, Float[Tensor, " pair"]],
) -> list[dict[str, Any]]:
    """Thresholds chosen on validation pairs, with their error rates there and on test pairs."""
    configured: tuple[Any, float | None] = (settings.threshold_rule, settings.threshold_value)
    rules = dict.fromkeys((configured, *SHOWN))
    table = []
    for rule, value in rules:
        point = operating_point(validation[1], validation[0].is_same, rule, value)
        tested = error_rates(test[1], test[0].is_same, point.threshold)
        table.append(
            {
                "rule": rule, "value": value, "threshold": point.threshold, "configured": (rule, value) == configured,
                "fnr": _cells(point.fnr), "fpr": _cells(point.fpr),
                "test_fnr": _cells(tested.fnr), "test_fpr": _cells(tested.fpr),
            }
        )  # fmt: skip
    return table


def class_table(
    settings: ReidentifierSettings,
    pairs: HeldOutPairs,
    probability: Float[Tensor, " pair"],
    classes: Sequence[str],
) -> dict[str, Any]:
    """Of every class the threshold the configured rule gives it alone, and what the common threshold does to it."""
    common = configured_point(settings, pairs, probability).threshold
    rule: Any = settings.threshold_rule
    table: dict[str, Any] = {}
    for number, name in enumerate(classes):
        label = pairs.label == number if pairs.label.ndim == 1 else pairs.label[:, number] == 1
        column = label[:, None].long()
        try:
            own, shared = (
                class_operating_points(probability, pairs.is_same, column, [name], *choice)[name]
                for choice in ((rule, settings.threshold_value), ("fixed", common))
            )
        except EvaluationError as error:
            table[name] = {"undefined": str(error)}
            continue
        table[name] = {
            "threshold": own.threshold, "fnr": _cells(own.fnr), "fpr": _cells(own.fpr),
            "common_threshold_fnr": _cells(shared.fnr), "common_threshold_fpr": _cells(shared.fpr),
        }  # fmt: skip
    return table


def _rate(name: str, rate: Proportion, seed: int) -> Metric:
    return Metric(ARM, name, rate.share, seed, rate.low, rate.high)


def _cells(rate: Proportion) -> list[float]:
    return [rate.share, rate.low, rate.high]
