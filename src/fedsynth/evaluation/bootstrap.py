"""Percentile bootstrap over test records: intervals of one system, and paired differences of two.

A replicate draws n of the n records with replacement; it is represented by how often each record was drawn,
so all metrics of all replicates come from a few matrix products (`classification.weighted_metrics`). The draw
is not stratified: class counts vary between replicates, as they would in another test sample.

The intervals describe the sampling of test records only, not training randomness; report seeds separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.evaluation.calibration import check_num_bins
from fedsynth.evaluation.checks import (
    EvaluationError,
    Vector,
    check_generator,
    check_integer,
    check_number,
    check_scores,
)
from fedsynth.evaluation.classification import check_threshold, weighted_metrics
from fedsynth.evaluation.pairwise import CHUNK_ELEMENTS

_COUNTS = ("tn", "fp", "fn", "tp")


@dataclass(frozen=True)
class BootstrapInterval:
    """Percentile interval of one metric; `num_undefined` replicates had no value (e.g. one class only)."""

    estimate: float
    low: float
    high: float
    num_undefined: int


@dataclass(frozen=True)
class PairedDifference:
    """Metric of the first system minus that of the second, with its two-sided bootstrap p-value."""

    estimate: float
    low: float
    high: float
    p_value: float
    num_undefined: int


def _weights(
    num_records: int, num_replicates: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "part n"]]:
    """Multiplicities of the records in each replicate, a bounded number of replicates at a time."""
    check_generator(generator)
    step = max(1, CHUNK_ELEMENTS // num_records)
    for start in range(0, num_replicates, step):
        size = min(step, num_replicates - start)
        drawn = torch.randint(num_records, (size, num_records), generator=generator, device=generator.device)
        weight = torch.zeros(size, num_records, dtype=torch.float64, device=generator.device)
        yield weight.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def _check_settings(num_replicates: int, confidence: float, num_bins: int) -> None:
    check_num_bins(num_bins)
    check_integer(num_replicates, "num_replicates", remedy="The usual value is 2000.")
    check_number(confidence, "confidence", low=0.0, high=1.0, is_open=True, remedy="The usual value is 0.95.")


def _replicate_metrics(
    systems: list[tuple[Tensor, Tensor, float]],
    num_replicates: int,
    generator: torch.Generator,
    num_bins: int,
) -> list[dict[str, Tensor]]:
    """The metrics of each system (probability, target, threshold): first the sample, then every replicate."""
    num_records, device = len(systems[0][0]), systems[0][0].device
    parts: list[list[dict[str, Tensor]]] = [[] for _ in systems]
    sample = torch.ones(1, num_records, dtype=torch.float64)
    for weight in (sample, *_weights(num_records, num_replicates, generator)):
        for part, (probability, target, threshold) in zip(parts, systems, strict=True):
            part.append(
                weighted_metrics(
                    probability, target, weight.to(device), threshold=threshold, num_bins=num_bins
                )
            )
    return [
        {name: torch.cat([p[name] for p in part]) for name in part[0] if name not in _COUNTS}
        for part in parts
    ]


def _interval(values: Float[Tensor, " replicate"], confidence: float) -> tuple[float, float, int]:
    defined = values[~values.isnan()]
    if len(defined) == 0:
        return float("nan"), float("nan"), len(values)
    tails = torch.tensor(
        [(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64, device=values.device
    )
    low, high = torch.quantile(defined, tails).tolist()
    return low, high, len(values) - len(defined)


def bootstrap_intervals(
    probability: Vector,
    target: Vector,
    threshold: float,
    *,
    generator: torch.Generator,
    num_replicates: int = 2_000,
    confidence: float = 0.95,
    num_bins: int = 15,
) -> dict[str, BootstrapInterval]:
    """Percentile intervals of every ratio in `classification_metrics`, from one set of resampled indices.

    The threshold is held fixed: its choice on validation records is not part of the resampling.

    Raises:
        EvaluationError: Bad probabilities, targets or settings.
    """
    _check_settings(num_replicates, confidence, num_bins)
    values, labels = check_scores(probability, target, is_probability=True, name="probability")
    systems = [(values, labels, check_threshold(threshold))]
    (metrics,) = _replicate_metrics(systems, num_replicates, generator, num_bins)
    return {
        name: BootstrapInterval(float(value[0]), *_interval(value[1:], confidence))
        for name, value in metrics.items()
    }


def bootstrap_contrasts(
    probabilities: Mapping[str, Vector],
    target: Vector,
    *,
    thresholds: Mapping[str, float],
    contrasts: Sequence[tuple[str, str]],
    generator: torch.Generator,
    num_replicates: int = 2_000,
    confidence: float = 0.95,
    num_bins: int = 15,
) -> dict[tuple[str, str], dict[str, PairedDifference]]:
    """Differences ``first - second`` for many pairs of systems, all resampled together.

    Every replicate draws one set of records for all systems, and each system's metrics are computed once, so
    the cost grows with the systems and not with the contrasts. Two-sided p-values and their limits: see
    `paired_bootstrap`; correct the metrics of one contrast with `holm_adjust`.

    Args:
        probabilities: p1 of each system for the same records in the same order.
        target: 0 or 1.
        thresholds: Each system's own operating point, held fixed.
        contrasts: Pairs of system names.
        generator: Draws the records.
        num_replicates, confidence, num_bins: As for `bootstrap_intervals`.

    Raises:
        EvaluationError: Bad probabilities, targets or settings; a contrast or threshold that names no system.
    """
    _check_settings(num_replicates, confidence, num_bins)
    names = list(dict.fromkeys(name for pair in contrasts for name in pair))
    missing = [name for name in names if name not in probabilities or name not in thresholds]
    if missing or not names:
        raise EvaluationError(
            f"contrasts must name systems with probabilities and thresholds, got none for {missing}. "
            f"Systems: {sorted(probabilities)}."
        )
    systems = [
        (
            *check_scores(probabilities[name], target, is_probability=True, name=name),
            check_threshold(thresholds[name], f"the threshold of {name}"),
        )
        for name in names
    ]
    metrics = dict(zip(names, _replicate_metrics(systems, num_replicates, generator, num_bins), strict=True))
    return {
        (first, second): {
            metric: _difference(metrics[first][metric] - metrics[second][metric], confidence)
            for metric in metrics[first]
        }
        for first, second in contrasts
    }


def _difference(values: Float[Tensor, " sample_and_replicate"], confidence: float) -> PairedDifference:
    low, high, num_undefined = _interval(values[1:], confidence)
    defined = values[1:][~values[1:].isnan()]
    p_value = float("nan")
    if len(defined):
        p_value = min(
            1.0, 2 * min(float((defined <= 0).double().mean()), float((defined >= 0).double().mean()))
        )
    return PairedDifference(float(values[0]), low, high, p_value, num_undefined)


def paired_bootstrap(
    first: Vector,
    second: Vector,
    target: Vector,
    *,
    first_threshold: float,
    second_threshold: float,
    generator: torch.Generator,
    num_replicates: int = 2_000,
    confidence: float = 0.95,
    num_bins: int = 15,
) -> dict[str, PairedDifference]:
    """Differences ``first - second`` of two systems on the same records, resampled together.

    The p-value is 2 min(P(d <= 0), P(d >= 0)) over the replicates, at most 1; it cannot fall below 0 or be
    finer than 2 / num_replicates, and is NaN when no replicate has a value. Correct several metrics of one
    contrast with `holm_adjust`.

    Args:
        first, second: p1 of each system for the same records in the same order.
        target: 0 or 1.
        first_threshold, second_threshold: Each system's own operating point, held fixed.

    Raises:
        EvaluationError: Bad probabilities, targets or settings.
    """
    return bootstrap_contrasts(
        {"first": first, "second": second},
        target,
        thresholds={"first": first_threshold, "second": second_threshold},
        contrasts=[("first", "second")],
        generator=generator,
        num_replicates=num_replicates,
        confidence=confidence,
        num_bins=num_bins,
    )["first", "second"]


def holm_adjust(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjustment: p-values of one family of tests, valid under any dependence.

    Raises:
        EvaluationError: A value that is no number in [0, 1] (NaN included: leave undefined tests out of the family).
    """
    # fidelity: holm-family
    for name, value in p_values.items():
        check_number(value, f"the p-value of {name!r}", low=0.0, high=1.0)
    adjusted, running = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}
