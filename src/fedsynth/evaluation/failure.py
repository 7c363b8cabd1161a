"""Failure analysis of a classifier of latents: collapsed scores, hard and borderline negatives.

Notation: p(h) probability of the positive class given by the classifier trained on synthetic latents, q(h) by the
one trained on real latents; h a real test latent [d]; μ+, μ- class means of the real training latents [d].

Quantities of FedDP-PALD's failure analysis, which the paper gives in words only; each function states the definition
used. Nothing here says *why* a classifier fails: correlations with the geometry of the latents are descriptive.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import (
    EvaluationError,
    PointSet,
    Vector,
    as_tensor,
    check_binary_target,
    check_integer,
    check_points,
    check_same_space,
    check_scores,
)
from fedsynth.evaluation.neighbors import nearest_neighbors


class LogitMoments(NamedTuple):
    """Mean and standard deviation (ddof = 1) of log-odds."""

    mean: float
    std: float


class FrequentValue(NamedTuple):
    """A rounded score and how many records have it."""

    value: float
    num_records: int


class ScoreComparison(NamedTuple):
    """Two classifiers on one set of records; `gap` is mean_synthetic - mean_real. NaN when `num_records` is 0."""

    num_records: int
    mean_synthetic: float
    mean_real: float
    gap: float


def score_range(score: Vector) -> float:
    """P90 - P10: how far apart the scores are, without the outermost tenths. Linear interpolation between ranks.

    0 for one record and for constant scores; NaN for none.

    Raises:
        EvaluationError: Scores that are not a vector of finite numbers.
    """
    values = _check_vector(score, "score")
    if len(values) == 0:
        return math.nan
    low, high = torch.quantile(values, values.new_tensor([0.1, 0.9])).tolist()
    return float(high - low)


def logit_moments(logit: Vector) -> LogitMoments:
    """Mean and sample standard deviation of log-odds. The mean is NaN without records, the deviation below two.

    Take logits from the network, not back from probabilities, which saturate.

    Raises:
        EvaluationError: Logits that are not a vector of finite numbers.
    """
    values = _check_vector(logit, "logit")
    mean = float(values.mean()) if len(values) else math.nan
    return LogitMoments(mean, float(values.std(correction=1)) if len(values) > 1 else math.nan)


def frequent_values(score: Vector, *, num_decimals: int = 4, num_values: int = 5) -> list[FrequentValue]:
    """The most frequent scores after rounding, most frequent first; of equally frequent ones the larger first.

    Rounding is to the nearest, of two equally near to the even digit, as in ``numpy.round``. At most ``num_values``;
    none without records.

    Raises:
        EvaluationError: Scores that are not a vector of finite numbers, or counts below 1.
    """
    num_decimals = check_integer(num_decimals, "num_decimals", remedy="The paper's are 4.")
    num_values = check_integer(num_values, "num_values")
    rounded = _check_vector(score, "score").round(decimals=num_decimals)
    values, counts = (rounded + 0.0).unique(return_counts=True)  # + 0.0: one zero, not two
    pairs = sorted(zip(counts.tolist(), values.tolist(), strict=True), reverse=True)
    return [FrequentValue(value, count) for count, value in pairs[:num_values]]


def centroid_margin(points: PointSet, *, reference: PointSet, label: Vector) -> Float[Tensor, " n"]:
    """‖h - μ+‖ - ‖h - μ-‖: negative nearer to the positives' mean, in latent units.

    Args:
        points: Test latents h.
        reference: Training latents, of which the class means are taken.
        label: 0 or 1 for each row of `reference`.

    Raises:
        EvaluationError: Bad points or labels, or a class without reference points.
    """
    # fidelity: centroid-margin
    rows, known, labels = _check_reference(points, reference, label)
    if not 0 < int(labels.sum()) < len(labels):
        raise EvaluationError(
            f"reference must hold both classes, got {int(labels.sum())} positives among {len(labels)}: "
            "there is no mean of the other class. Use more training records."
        )
    to_positive, to_negative = ((rows - known[labels == value].mean(dim=0)).norm(dim=1) for value in (1, 0))
    return to_positive - to_negative


def neighbor_positive_share(
    points: PointSet, *, reference: PointSet, label: Vector, num_neighbors: int = 25
) -> Float[Tensor, " n"]:
    """Share of positives among the k nearest reference points (Euclidean), in [0, 1] for every point.

    Points are never left out of their own neighborhood: `points` (test) and `reference` (training) are different
    records.

    Raises:
        EvaluationError: Bad points or labels, or fewer than k reference points.
    """
    # fidelity: failure-neighbors
    _, _, labels = _check_reference(points, reference, label)
    index = nearest_neighbors(points, reference, num_neighbors=num_neighbors).index
    return labels[index].double().mean(dim=1)


def correlation(first: Vector, second: Vector) -> float:
    """Pearson's r of two vectors; NaN when one of them is constant or there are fewer than two records.

    Raises:
        EvaluationError: Vectors that are not finite or of different length.
    """
    one, other = _check_vector(first, "first"), _check_vector(second, "second")
    _check_same_length(one, other, ("first", "second"))
    if len(one) < 2 or bool(one.min() == one.max()) or bool(other.min() == other.max()):
        return math.nan
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def hard_negatives(
    synthetic: Vector, real: Vector, target: Vector, *, fraction: float = 0.125
) -> Int[Tensor, " hard"]:
    """Row numbers of the negatives with the largest p - q, largest first; ties go to the lower row.

    As many as `fraction` of all negatives, rounded down, but at least one; none without negatives.

    Args:
        synthetic: p, of the classifier trained on synthetic latents.
        real: q, of the one trained on real latents.
        target: 0 or 1.
        fraction: In (0, 1].

    Raises:
        EvaluationError: Bad probabilities, targets or fraction.
    """
    # fidelity: hard-negatives
    if not 0 < fraction <= 1:
        raise EvaluationError(f"fraction must be in (0, 1], got {fraction}. The usual value is 0.125.")
    p, labels = check_scores(synthetic, target, is_probability=True, name="synthetic")
    q, _ = check_scores(real, target, is_probability=True, name="real")
    negatives = (labels == 0).nonzero()[:, 0]
    count = min(len(negatives), max(1, math.floor(fraction * len(negatives))))
    order = (p - q)[negatives].argsort(descending=True, stable=True)
    return negatives[order[:count]]


def borderline_negatives(
    positive_share: Vector, target: Vector, *, low: float = 0.2, high: float = 0.8
) -> Int[Tensor, " borderline"]:
    """Row numbers of the negatives with low < positive share < high, in order; possibly none.

    Args:
        positive_share: From `neighbor_positive_share`.
        target: 0 or 1.
        low, high: The open interval.

    Raises:
        EvaluationError: Bad shares or targets, or not 0 <= low < high <= 1.
    """
    if not 0 <= low < high <= 1:
        raise EvaluationError(f"low and high must satisfy 0 <= low < high <= 1, got {low} and {high}.")
    share, labels = check_scores(positive_share, target, is_probability=True, name="positive_share")
    is_borderline: Bool[Tensor, " n"] = (labels == 0) & (share > low) & (share < high)
    return is_borderline.nonzero()[:, 0]


def compare_scores(synthetic: Vector, real: Vector, rows: Int[Tensor, " chosen"]) -> ScoreComparison:
    """Mean p, mean q and their difference over the chosen rows.

    Raises:
        EvaluationError: Vectors that are not finite or of different length, or rows out of range.
    """
    p, q = _check_vector(synthetic, "synthetic"), _check_vector(real, "real")
    _check_same_length(p, q, ("synthetic", "real"))
    if len(rows) == 0:
        return ScoreComparison(0, math.nan, math.nan, math.nan)
    if not 0 <= int(rows.min()) <= int(rows.max()) < len(p):
        raise EvaluationError(
            f"rows must lie in [0, {len(p) - 1}], got {int(rows.min())} to {int(rows.max())}."
        )
    mean_p, mean_q = float(p[rows].mean()), float(q[rows].mean())
    return ScoreComparison(len(rows), mean_p, mean_q, mean_p - mean_q)


def _check_vector(values: Vector, name: str) -> Float[Tensor, " n"]:
    tensor = as_tensor(values, name).double()
    if tensor.ndim != 1 or not bool(tensor.isfinite().all()):
        raise EvaluationError(
            f"{name} must be a vector of finite numbers, got shape {tuple(tensor.shape)} with "
            f"{int((~tensor.isfinite()).sum())} NaN or infinite values."
        )
    return tensor


def _check_same_length(first: Tensor, second: Tensor, names: tuple[str, str]) -> None:
    if len(first) != len(second):
        raise EvaluationError(
            f"{names[0]} and {names[1]} must hold the same records, got {len(first)} and {len(second)} values."
        )


def _check_reference(points: PointSet, reference: PointSet, label: Vector) -> tuple[Tensor, Tensor, Tensor]:
    rows = check_points(points, "points").double()
    known = check_points(reference, "reference").double()
    check_same_space(rows, known, ("points", "reference"))
    labels = check_binary_target(label, "label")
    _check_same_length(known, labels, ("reference", "label"))
    return rows, known, labels
