"""Privacy-Performance Score and the metrics of predicted classes that enter it (FedMPA).

ρ = 1 - 2 |AUC - 1/2| of a membership attack is the "normalized privacy score", UAR the mean of sensitivity and
specificity, and PPS = 2 UAR ρ / (UAR + ρ).

What ρ does **not** say: it treats an AUC of .42 as leaking as much as one of .58, and near .5 it is dominated by the
sampling error of the AUC (about .045 with 163 members and 56 non-members). Give an interval beside it.
"""

from __future__ import annotations

from typing import overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, Vector, as_tensor, check_binary_target
from fedsynth.evaluation.classification import confusion_metrics

#: Metrics of predicted classes, in the order of the paper's table; ``uar`` is the balanced accuracy.
DECISION_METRICS = ("accuracy", "precision", "sensitivity", "specificity", "f1", "uar")


def weighted_decision_metrics(
    predicted: Int[Tensor, "model n"], target: Int[Tensor, " n"], weight: Float[Tensor, "replicate n"]
) -> dict[str, Float[Tensor, "replicate model"]]:
    """`decision_metrics` of every model for each row of weights; inputs already validated, weights float64."""
    positive, called = (target == 1).unsqueeze(0), predicted == 1
    tp, fp, fn, tn = (
        weight @ cell.double().T
        for cell in (positive & called, ~positive & called, positive & ~called, ~positive & ~called)
    )
    metrics = confusion_metrics(tn, fp, fn, tp)
    metrics["uar"] = metrics["balanced_accuracy"]
    return {name: metrics[name] for name in DECISION_METRICS}


def decision_metrics(predicted: Vector, target: Vector) -> dict[str, float]:
    """Metrics of predicted classes, which need no threshold: class 1 is positive.

    Args:
        predicted: 0 or 1, e.g. the class with the largest probability.
        target: 0 or 1.

    Returns:
        accuracy, precision, sensitivity, specificity, f1 (of class 1) and uar, the unweighted average recall. A ratio
        without cases is NaN, as in `classification_metrics`.

    Raises:
        EvaluationError: Shapes or devices that differ, no records, or values other than 0 and 1.
    """
    called, labels = check_decisions(predicted, target)
    ones = torch.ones(1, len(labels), dtype=torch.float64, device=labels.device)
    found = weighted_decision_metrics(called.unsqueeze(0), labels, ones)
    return {name: float(value) for name, value in found.items()}


def check_decisions(predicted: Vector, target: Vector) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Validated predicted classes and targets, both int64.

    Raises:
        EvaluationError: See `decision_metrics`.
    """
    called, labels = check_binary_target(predicted, "predicted"), check_binary_target(target)
    if called.shape != labels.shape or called.device != labels.device:
        raise EvaluationError(
            f"predicted and target must hold one class per record on one device, got {tuple(called.shape)} on "
            f"{called.device} and {tuple(labels.shape)} on {labels.device}."
        )
    return called, labels


@overload
def normalized_privacy_score(attack_auroc: float) -> float: ...
@overload
def normalized_privacy_score(attack_auroc: Tensor) -> Tensor: ...
def normalized_privacy_score(attack_auroc: float | Tensor) -> float | Tensor:
    """ρ = 1 - 2 |AUC - 1/2|: 1 for an attack at chance, 0 for one that is always right or always wrong.

    Args:
        attack_auroc: AUC of a membership attack, in [0, 1]; NaN gives NaN. A tensor (any shape) or one number.

    Raises:
        EvaluationError: Values outside [0, 1].
    """
    auc = _shares(attack_auroc, "attack_auroc")
    score = 1 - 2 * (auc - 0.5).abs()
    return score if isinstance(attack_auroc, Tensor) else float(score)


@overload
def privacy_performance_score(uar: float, privacy_score: float) -> float: ...
@overload
def privacy_performance_score(uar: Tensor, privacy_score: Tensor) -> Tensor: ...
def privacy_performance_score(uar: float | Tensor, privacy_score: float | Tensor) -> float | Tensor:
    """PPS, the harmonic mean of UAR and normalized privacy score; 0 when both are 0.

    Args:
        uar: Unweighted average recall, in [0, 1].
        privacy_score: ρ of `normalized_privacy_score`, in [0, 1]. NaN in either gives NaN.

    Raises:
        EvaluationError: Values outside [0, 1], or tensors of different shapes.
    """
    first, second = _shares(uar, "uar"), _shares(privacy_score, "privacy_score")
    if first.shape != second.shape:
        raise EvaluationError(
            f"uar and privacy_score must have one shape, got {tuple(first.shape)} and {tuple(second.shape)}."
        )
    low, high, total = torch.minimum(first, second), torch.maximum(first, second), first + second
    # high / total lies in [1/2, 1]: no product of tiny shares underflows.
    score = torch.where(total == 0, torch.zeros_like(total), 2 * low * (high / total))
    return score if isinstance(uar, Tensor) else float(score)


def _shares(value: float | Tensor, name: str) -> Tensor:
    """Float64 values of [0, 1] or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise EvaluationError(f"{name} must be a number or a tensor, got {type(value).__name__}.")
    if not isinstance(value, Tensor):
        value = torch.tensor(float(value), dtype=torch.float64)
    values = as_tensor(value, name).double()
    outside = (values < 0) | (values > 1)
    if bool(outside.any()):
        raise EvaluationError(
            f"{name} must lie in [0, 1], got {values[outside].flatten()[:3].tolist()}. "
            "Percentages must be divided by 100."
        )
    return values
