"""Area under the ROC curve and average precision, exact with ties, for one sample or many reweightings of it.

Notation: g runs over the distinct scores; P_g, N_g are the weights of positives and negatives with score g.
A weight is how often a record counts: all ones for the sample itself, multiplicities for a bootstrap
    replicate.

Written out rather than taken from torchmetrics because scores here need not be probabilities (torchmetrics
passes anything outside [0, 1] through a sigmoid, whose saturation creates ties), must stay in float64 (its
curves are float32), and thousands of replicates have to share one sort. The tests compare with torchmetrics
and scikit-learn.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import Vector, check_scores


class ScoreCounts(NamedTuple):
    """Weights per distinct score, highest score first."""

    positive: Float[Tensor, "replicate group"]
    negative: Float[Tensor, "replicate group"]


def count_by_score(
    score: Float[Tensor, " n"], target: Int[Tensor, " n"], weight: Float[Tensor, "replicate n"]
) -> ScoreCounts:
    """P_g and N_g of every replicate."""
    distinct, group = torch.unique(score, sorted=True, return_inverse=True)
    group = len(distinct) - 1 - group
    empty = weight.new_zeros(len(weight), len(distinct))
    return ScoreCounts(
        positive=empty.index_add(1, group, weight * target),
        negative=empty.index_add(1, group, weight * (1 - target)),
    )


def auroc_from_counts(counts: ScoreCounts) -> Float[Tensor, " replicate"]:
    """P(score of a positive > score of a negative) + P(equal) / 2; NaN where a class is absent."""
    positive, negative = counts
    num_negatives = negative.sum(dim=1)
    negatives_below = num_negatives.unsqueeze(1) - negative.cumsum(dim=1)  # [replicate, group]
    wins = (positive * (negatives_below + negative / 2)).sum(dim=1)
    return wins / (positive.sum(dim=1) * num_negatives)


def average_precision_from_counts(counts: ScoreCounts) -> Float[Tensor, " replicate"]:
    """Σ_g (P_g / P) · precision at the threshold g; NaN without positives."""
    positive, negative = counts
    true_positives, false_positives = positive.cumsum(dim=1), negative.cumsum(dim=1)
    precision = true_positives / (true_positives + false_positives).clamp(min=1e-300)
    return (positive * precision).sum(dim=1) / positive.sum(dim=1)


def _counts(score: Vector, target: Vector) -> ScoreCounts:
    values, labels = check_scores(score, target, is_probability=False)
    return count_by_score(values, labels, torch.ones_like(values).unsqueeze(0))


def auroc(score: Vector, target: Vector) -> float:
    """Area under the ROC curve: the share of (positive, negative) pairs ranked rightly, ties counting one
    half.

    Args:
        score: Any finite numbers, larger meaning more positive; only their order matters.
        target: 0 or 1.

    Returns:
        A value in [0, 1]; NaN when only one class is present.

    Raises:
        EvaluationError: Shapes differ, scores not finite, targets not 0/1.
    """
    return float(auroc_from_counts(_counts(score, target)))


def average_precision(score: Vector, target: Vector) -> float:
    """Area under the precision-recall curve as a step function (no interpolation), the usual "AUPRC".

    Args and errors as for `auroc`. NaN without positives; 1 without negatives.
    """
    return float(average_precision_from_counts(_counts(score, target)))
