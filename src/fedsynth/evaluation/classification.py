"""Binary classification metrics of one system, for the sample itself or for many reweightings of it at once.

Conventions: class 1 is positive; a record is predicted positive when ``probability >= threshold`` (compared
in float64). A ratio without cases (0/0) is NaN, never a silent 0, so that an average over seeds shows it:

| metric | NaN when |
|---|---|
| sensitivity | no positives |
| specificity | no negatives |
| balanced_accuracy, auroc | one class absent |
| auprc | no positives |
| precision | nothing predicted positive |
| npv | nothing predicted negative |
| f1 | no positives and nothing predicted positive |

The one exception is mcc, which by convention is 0 when a row or column of the confusion matrix is empty.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.calibration import calibration_bins, check_num_bins
from fedsynth.evaluation.checks import (
    EvaluationError,
    Vector,
    as_tensor,
    check_number,
    check_scores,
    require_finite,
)
from fedsynth.evaluation.ranking import (
    auroc_from_counts,
    average_precision_from_counts,
    count_by_score,
)

Criterion = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

#: Probabilities are kept this far from 0 and 1 in the log-likelihood, which is thereby at most 27.6 nats a
#: record.
LIKELIHOOD_MARGIN = 1e-12


def predict_positive(probability: Vector, threshold: float) -> Tensor:
    """``probability >= threshold``, compared in float64 as everywhere in this package; any shape.

    Raises:
        EvaluationError: NaN or infinite probabilities, or a threshold that is no number.
    """
    values = as_tensor(probability, "probability").double()
    require_finite(values, "probability")
    return values >= check_threshold(threshold)


def check_threshold(threshold: float, name: str = "threshold") -> float:
    """A number other than NaN; infinite ones predict all or nothing positive."""
    return check_number(threshold, name, remedy="Choose it on validation records.")


def confusion_metrics(tn: Tensor, fp: Tensor, fn: Tensor, tp: Tensor) -> dict[str, Tensor]:
    """Every metric that is a function of the four (elementwise, float64) confusion counts."""
    sensitivity, specificity = tp / (tp + fn), tn / (tn + fp)
    margins = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    mcc = (tp * tn - fp * fn) / margins.sqrt()
    return {
        "accuracy": (tp + tn) / (tp + tn + fp + fn),
        "precision": tp / (tp + fp),
        "f1": 2 * tp / (2 * tp + fp + fn),
        "balanced_accuracy": (sensitivity + specificity) / 2,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "npv": tn / (tn + fn),
        "mcc": torch.where(margins == 0, torch.zeros_like(mcc), mcc),
        "tn": tn,
        "fp": fp,
        "fn": fn,
        "tp": tp,
    }


def weighted_metrics(
    probability: Float[Tensor, " n"],
    target: Int[Tensor, " n"],
    weight: Float[Tensor, "replicate n"],
    *,
    threshold: float,
    num_bins: int,
) -> dict[str, Float[Tensor, " replicate"]]:
    """All metrics of `classification_metrics` for each row of weights; inputs already validated, float64."""
    counts = count_by_score(probability, target, weight)
    positive, predicted = target == 1, probability >= threshold
    safe = probability.clamp(LIKELIHOOD_MARGIN, 1 - LIKELIHOOD_MARGIN)
    per_record = torch.stack(
        [
            (~positive & ~predicted).double(),
            (~positive & predicted).double(),
            (positive & ~predicted).double(),
            (positive & predicted).double(),
            (probability - target).square(),
            -torch.where(positive, safe.log(), torch.log1p(-safe)),
        ],
        dim=1,
    )
    tn, fp, fn, tp, brier, nll = (weight @ per_record).unbind(dim=1)
    bins = torch.nn.functional.one_hot(calibration_bins(probability, num_bins), num_bins)
    excess = weight @ (bins * (probability - target).unsqueeze(1))  # [replicate, bin]
    total = weight.sum(dim=1)
    return {
        "auroc": auroc_from_counts(counts),
        "auprc": average_precision_from_counts(counts),
        **confusion_metrics(tn, fp, fn, tp),
        "brier": brier / total,
        "nll": nll / total,
        "ece": excess.abs().sum(dim=1) / total,
    }


def classification_metrics(
    probability: Vector, target: Vector, threshold: float, *, num_bins: int = 15
) -> dict[str, float]:
    """Metrics of one set of positive-class probabilities at one threshold.

    Args:
        probability: p1 in [0, 1].
        target: 0 or 1.
        threshold: Predicted positive is p1 >= threshold; `inf` predicts nothing positive. Choose it on
            validation records, e.g. with `balanced_accuracy_threshold`.
        num_bins: Bins of the ECE.

    Returns:
        auroc, auprc (average precision), accuracy, precision, f1, balanced_accuracy, sensitivity,
        specificity, npv, mcc, brier (mean (p1 - y)²), nll (mean, nats), ece, and the counts tn, fp, fn, tp
        (whole numbers).
        Degenerate cases: see the module's table.

    Raises:
        EvaluationError: Bad probabilities or targets, a NaN threshold, or num_bins < 1.
    """
    check_num_bins(num_bins)
    values, labels = check_scores(probability, target, is_probability=True, name="probability")
    threshold = check_threshold(threshold)
    ones = torch.ones_like(values).unsqueeze(0)
    metrics = weighted_metrics(values, labels, ones, threshold=threshold, num_bins=num_bins)
    return {
        name: int(value) if name in ("tn", "fp", "fn", "tp") else float(value)
        for name, value in metrics.items()
    }


def _best_threshold(probability: Vector, target: Vector, name: str, criterion: Criterion) -> float:
    """The largest observed probability with the highest criterion(fp, tp, negatives, positives)."""
    values, labels = check_scores(probability, target, is_probability=True, name="probability")
    if not 0 < int(labels.sum()) < len(labels):
        raise EvaluationError(
            f"a {name} threshold needs both classes, got {int(labels.sum())} positives among {len(labels)} "
            "validation records. Use a larger validation set or another split."
        )
    thresholds = values.unique(sorted=True).flip(0)
    counts = count_by_score(values, labels, torch.ones_like(values).unsqueeze(0))
    positive, negative = counts.positive[0], counts.negative[0]
    score = criterion(negative.cumsum(0), positive.cumsum(0), negative.sum(), positive.sum())
    # argmax returns an unspecified one of several maxima; the first is the largest threshold.
    return float(thresholds[(score == score.max()).nonzero()[0, 0]])


def balanced_accuracy_threshold(probability: Vector, target: Vector) -> float:
    """The threshold with the highest balanced accuracy (Youden's J); for validation records.

    Candidates are the observed probabilities; among ties the largest wins, i.e. the fewest predicted
    positives. Ties are exact: whole numbers are compared, not rounded ratios.

    Raises:
        EvaluationError: Bad inputs or only one class.
    """
    # fidelity: threshold-criterion
    # tp/P + tn/N times P N, whole numbers.
    return _best_threshold(
        probability, target, "balanced accuracy", lambda fp, tp, n, p: tp * n + (n - fp) * p
    )


def f1_threshold(probability: Vector, target: Vector) -> float:
    """The threshold with the highest F1; candidates, ties and errors as for `balanced_accuracy_threshold`."""
    # One correctly rounded division: equal ratios are equal floats.
    return _best_threshold(probability, target, "F1", lambda fp, tp, n, p: 2 * tp / (tp + fp + p))
