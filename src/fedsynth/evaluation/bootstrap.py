"""Percentile bootstrap over test records: intervals of one system, and paired differences of two.

A replicate draws n of the n records with replacement; it is represented by how often each record was drawn,
so all metrics of all replicates come from a few matrix products (`classification.weighted_metrics`). The draw
is not
stratified: class counts vary between replicates, as they would in another test sample.

The intervals describe the sampling of test records only, not training randomness; report seeds separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.evaluation.calibration import check_num_bins
from fedsynth.evaluation.checks import EvaluationError, Vector, check_scores
from fedsynth.evaluation.classification import weighted_metrics
from fedsynth.evaluation.neighbors import CHUNK_ELEMENTS

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
    step = max(1, CHUNK_ELEMENTS // num_records)
    for start in range(0, num_replicates, step):
        size = min(step, num_replicates - start)
        drawn = torch.randint(num_records, (size, num_records), generator=generator, device=generator.device)
        weight = torch.zeros(size, num_records, dtype=torch.float64, device=generator.device)
        yield weight.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def _check_settings(num_replicates: int, confidence: float, num_bins: int) -> None:
    check_num_bins(num_bins)
    if num_replicates < 1:
        raise EvaluationError(
            f"num_replicates must be at least 1, got {num_replicates}. The usual value is 2000."
        )
    if not 0 < confidence < 1:
        raise EvaluationError(f"confidence must be in (0, 1), got {confidence}. The usual value is 0.95.")


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
    (metrics,) = _replicate_metrics([(values, labels, float(threshold))], num_replicates, generator, num_bins)
    return {
        name: BootstrapInterval(float(value[0]), *_interval(value[1:], confidence))
        for name, value in metrics.items()
    }


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
    finer than 2 / num_replicates. Correct several metrics of one contrast with `holm_adjust`.

    Args:
        first, second: p1 of each system for the same records in the same order.
        target: 0 or 1.
        first_threshold, second_threshold: Each system's own operating point, held fixed.

    Raises:
        EvaluationError: Bad probabilities, targets or settings.
    """
    _check_settings(num_replicates, confidence, num_bins)
    systems = []
    for name, score, threshold in (("first", first, first_threshold), ("second", second, second_threshold)):
        systems.append((*check_scores(score, target, is_probability=True, name=name), float(threshold)))
    metrics_a, metrics_b = _replicate_metrics(systems, num_replicates, generator, num_bins)
    differences = {name: metrics_a[name] - metrics_b[name] for name in metrics_a}
    result = {}
    for name, value in differences.items():
        low, high, num_undefined = _interval(value[1:], confidence)
        defined = value[1:][~value[1:].isnan()]
        tail = min(float((defined <= 0).double().mean()), float((defined >= 0).double().mean()))
        result[name] = PairedDifference(float(value[0]), low, high, min(1.0, 2 * tail), num_undefined)
    return result


def holm_adjust(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjustment: p-values of one family of tests, valid under any dependence.

    Raises:
        EvaluationError: A value outside [0, 1] (NaN included: leave undefined tests out of the family).
    """
    # fidelity: holm-family
    for name, value in p_values.items():
        if not 0 <= value <= 1:
            raise EvaluationError(f"the p-value of {name!r} must lie in [0, 1], got {value}.")
    adjusted, running = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}
