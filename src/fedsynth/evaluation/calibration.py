"""Calibration of binary probabilities: expected calibration error, temperature scaling (Guo et al. 2017)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import (
    EvaluationError,
    Vector,
    as_tensor,
    check_class_index,
    check_integer,
    check_number,
    check_scores,
)

#: Temperatures searched; a fit that ends on a bound found no interior minimum (e.g. perfectly separated
#: records).
TEMPERATURE_RANGE = (0.01, 100.0)


def calibration_bins(probability: Float[Tensor, " n"], num_bins: int) -> Int[Tensor, " n"]:
    """Equal-width right-closed bins: bin m is (m/M, (m+1)/M], and 0 belongs to the first (Guo et al.)."""
    edges = torch.linspace(0, 1, num_bins + 1, dtype=probability.dtype, device=probability.device)
    return (torch.bucketize(probability.contiguous(), edges, right=False) - 1).clamp(0, num_bins - 1)


def check_num_bins(num_bins: int) -> None:
    check_integer(num_bins, "num_bins", remedy="The usual value is 15.")


def expected_calibration_error(probability: Vector, target: Vector, num_bins: int = 15) -> float:
    """ECE of the positive-class probability: Σ_m (n_m / n) |mean probability - share of positives| over bins
    m.

    Bins are equal-width on p1 and right-closed. torchmetrics' `BinaryCalibrationError` is the same quantity
    with left-closed bins and a bin of its own for p = 1; the two differ only for probabilities exactly on an
    edge. This is not the top-label ECE, which bins max(p, 1-p) and compares with accuracy.

    Args:
        probability: p1 in [0, 1].
        target: 0 or 1.
        num_bins: M >= 1.

    Returns:
        A value in [0, 1].

    Raises:
        EvaluationError: Bad probabilities or targets, or num_bins < 1.
    """
    check_num_bins(num_bins)
    values, labels = check_scores(probability, target, is_probability=True, name="probability")
    # fidelity: ece-bins
    excess = values.new_zeros(num_bins).index_add_(0, calibration_bins(values, num_bins), values - labels)
    return float(excess.abs().sum() / len(values))


class TemperatureFit(NamedTuple):
    """A fitted temperature and the mean negative log-likelihood (nats) without and with it."""

    temperature: float
    nll_before: float
    nll_after: float


def brier_score(probability: Vector, target: Vector) -> float:
    """Mean (p1 - y)² of the positive-class probability, in [0, 1]; half of the two-class sum of squares.

    Raises:
        EvaluationError: Bad probabilities or targets.
    """
    values, labels = check_scores(probability, target, is_probability=True, name="probability")
    return float((values - labels).square().mean())


class ReliabilityDiagram(NamedTuple):
    """One value per bin of the positive-class probability; means of an empty bin are NaN."""

    upper_edge: Float[Tensor, " bin"]
    num_records: Int[Tensor, " bin"]
    mean_probability: Float[Tensor, " bin"]
    positive_share: Float[Tensor, " bin"]


def reliability_diagram(probability: Vector, target: Vector, num_bins: int = 15) -> ReliabilityDiagram:
    """What `expected_calibration_error` sums up: ECE = Σ_m (num_records / n) |mean_probability - positive_share|.

    Args and errors as there.
    """
    check_num_bins(num_bins)
    values, labels = check_scores(probability, target, is_probability=True, name="probability")
    bins, zeros = calibration_bins(values, num_bins), values.new_zeros(num_bins)
    count = torch.bincount(bins, minlength=num_bins)
    return ReliabilityDiagram(
        upper_edge=torch.arange(1, num_bins + 1, dtype=values.dtype, device=values.device) / num_bins,
        num_records=count,
        mean_probability=zeros.index_add(0, bins, values) / count,
        positive_share=zeros.index_add(0, bins, labels.double()) / count,
    )


def _two_class_logits(logits: Tensor) -> Float[Tensor, "n c"]:
    values = as_tensor(logits, "logits").double()
    if values.ndim == 1:
        values = torch.stack([torch.zeros_like(values), values], dim=1)
    if values.ndim != 2 or values.shape[1] < 2 or not bool(torch.isfinite(values).all()):
        raise EvaluationError(
            "logits must be finite with shape [records] (binary) or [records, classes], got shape "
            f"{tuple(logits.shape)}. "
            "Pass the model's outputs before sigmoid or softmax."
        )
    return values


def scale_logits(logits: Tensor, temperature: float) -> Float[Tensor, "n c"]:
    """softmax(logits / T) in float64; binary logits [n] (log-odds of the positive class) give [n, 2].

    Raises:
        EvaluationError: Bad logits, or a temperature that is not a positive finite number.
    """
    temperature = check_number(temperature, "temperature", low=0.0, is_open=True)
    return torch.softmax(_two_class_logits(logits) / temperature, dim=1)


def fit_temperature(logits: Tensor, target: Tensor) -> TemperatureFit:
    """The single T > 0 that minimizes the validation negative log-likelihood of softmax(logits / T).

    The likelihood is convex in 1/T, so the bounded search over log T has one minimum. Ranking, AUROC and any
    argmax are unchanged by T. Fit on validation records and apply to test records, never the reverse.

    Args:
        logits: [n, classes], or [n] log-odds of the positive class.
        target: Class index of each record.

    Returns:
        T within `TEMPERATURE_RANGE` and the likelihoods; T ends at a bound when the records are separated
        without error (lower) or the logits carry no information (upper).

    Raises:
        EvaluationError: Bad shapes, non-finite logits, or targets that are not class indices.
    """
    from scipy.optimize import minimize_scalar

    values = _two_class_logits(logits)
    labels = check_class_index(target, values.shape[1], len(values), "target")
    if len(labels) == 0:
        raise EvaluationError("target must hold at least one record. Fit on the validation split.")
    if labels.device != values.device:
        raise EvaluationError(
            f"logits and target must be on one device, got {values.device} and {labels.device}."
        )

    def nll(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(values / math.exp(log_temperature), labels))

    bounds = (math.log(TEMPERATURE_RANGE[0]), math.log(TEMPERATURE_RANGE[1]))
    found = minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-8})
    # T = 1 is always a candidate, so scaling never makes the validation likelihood worse.
    nll_before, nll_after = nll(0.0), float(found.fun)
    if nll_before <= nll_after:
        return TemperatureFit(temperature=1.0, nll_before=nll_before, nll_after=nll_before)
    return TemperatureFit(temperature=math.exp(float(found.x)), nll_before=nll_before, nll_after=nll_after)
