"""Thresholds of the identity filter, with the error rates each implies on held-out pairs.

A pair is flagged ("one person") if its probability is strictly above the threshold. False positives are flagged pairs
of two persons, false negatives pairs of one person that pass. The rates hold for real pairs drawn as the held-out
pairs were; what a synthetic image shares with its source is another distribution, and a pair that passes is no
evidence that no attacker could link it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from fedsynth.attacks.group_bootstrap import group_weights
from fedsynth.attacks.residual_risk import Proportion, wilson_proportion
from fedsynth.evaluation.bootstrap import BootstrapInterval
from fedsynth.evaluation.checks import EvaluationError, Vector, as_tensor, check_number, check_scores
from fedsynth.evaluation.participant_bootstrap import replicate_intervals, weighted_attack_auroc

Rule = Literal["fixed", "fpr", "fnr", "youden"]
RULES = ("fixed", "fpr", "fnr", "youden")


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and its error rates on held-out pairs.

    Attributes:
        rule, value: How it was chosen.
        threshold: Flagged is what lies strictly above.
        fpr: Flagged pairs of two persons, with the Wilson interval (pairs taken as independent, which those that
            share an image or a patient are not).
        fnr: Unflagged pairs of one person.
    """

    rule: str
    value: float | None
    threshold: float
    fpr: Proportion
    fnr: Proportion


def operating_point(
    probability: Vector, is_same: Vector, rule: Rule, value: float | None = None, *, confidence: float = 0.95
) -> OperatingPoint:
    """The threshold that a rule chooses on held-out pairs.

    Args:
        probability: P(x, x') of each pair.
        is_same: 1 for pairs of one person.
        rule: ``fixed``: ``value`` itself. ``fpr``: the smallest threshold whose false-positive rate is at most
            ``value``. ``fnr``: the largest threshold whose false-negative rate is at most ``value``. ``youden``: the
            largest difference of true- and false-positive rate, of equals the lowest threshold; takes no value.
        value: In [0, 1].
        confidence: Of the Wilson intervals.

    Raises:
        EvaluationError: Unknown rule, missing or superfluous value, no pair of a kind, or bad probabilities.
    """
    score, same = _check_pairs(probability, is_same)
    _check_rule(rule, value)
    positive, negative = score[same == 1].sort().values, score[same == 0].sort().values
    threshold = float(value) if rule == "fixed" and value is not None else 0.0
    if rule != "fixed":
        threshold = _chosen(_thresholds(score), positive, negative, rule, value)
    missed, false = (int((positive <= threshold).sum()), int((negative > threshold).sum()))
    return OperatingPoint(
        rule=rule,
        value=value,
        threshold=threshold,
        fpr=wilson_proportion(false, len(negative), confidence=confidence),
        fnr=wilson_proportion(missed, len(positive), confidence=confidence),
    )


def error_rates(probability: Vector, is_same: Vector, threshold: float) -> OperatingPoint:
    """What a threshold chosen elsewhere does to these pairs: ``operating_point`` with the rule ``fixed``."""
    return operating_point(probability, is_same, "fixed", threshold)


def class_operating_points(
    probability: Vector,
    is_same: Vector,
    label: Int[Tensor, "pair ..."],
    classes: Sequence[str],
    rule: Rule,
    value: float | None = None,
) -> dict[str, OperatingPoint]:
    """One operating point a class, from the pairs whose first image has it.

    Args:
        label: Class index of the first image [pairs], or its labels [pairs, classes] of a multi-label task.
        classes: Their names.

    Raises:
        EvaluationError: A class without pairs of both kinds: there a threshold of its own cannot be had.
    """
    member = (
        label == 1 if label.ndim == 2 else label[:, None] == torch.arange(len(classes), device=label.device)
    )
    if member.shape != (len(probability), len(classes)):
        raise EvaluationError(
            f"label must hold one class a pair, or one column for each of {len(classes)} labels, "
            f"got shape {tuple(label.shape)} for {len(probability)} pairs."
        )
    scores, same = _check_pairs(probability, is_same)
    points = {}
    for number, name in enumerate(classes):
        rows = member[:, number]
        ones, twos = int(same[rows].sum()), int((1 - same[rows]).sum())
        if not ones or not twos:
            raise EvaluationError(
                f"Class {name} has {ones} held-out pairs of one person and {twos} of two; a threshold of its own "
                "needs both. Use one threshold for all classes, or more held-out patients."
            )
        points[name] = operating_point(scores[rows], same[rows], rule, value)
    return points


class PairLogistic(NamedTuple):
    """P(one person) = σ(scale · score + bias), with its balanced mean negative log-likelihood in nats."""

    scale: float
    bias: float
    loss: float


def fit_pair_logistic(score: Vector, is_same: Vector) -> PairLogistic:
    """Platt's logistic of a similarity score, for equal prior probabilities of both kinds of pairs.

    Both kinds weigh one half, whatever their numbers, and targets are smoothed to (m+1)/(m+2) and 1/(m+2) (Platt
    1999), so that separated scores have a finite fit. The scale is at least 0: a score that ranks backwards
    gives a probability of one half for all, not a reversed one.

    Args:
        score: Larger means more alike.
        is_same: 1 for pairs of one person.

    Raises:
        EvaluationError: No pair of a kind, or scores that are not finite.
    """
    from scipy.optimize import minimize

    values, same = check_scores(score, is_same, is_probability=False)
    ones = _require_both(same)
    center, spread = float(values.mean()), max(float(values.std(correction=0)), 1e-12)
    x = (values - center) / spread
    count = torch.where(same == 1, ones, len(same) - ones).double()
    weight, target = 0.5 / count, torch.where(same == 1, (count + 1) / (count + 2), 1 / (count + 2))

    def loss(parameters: Sequence[float]) -> tuple[float, list[float]]:
        logit = parameters[0] * x + parameters[1]
        value = (
            weight * torch.nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="none")
        ).sum()
        slope = weight * (logit.sigmoid() - target)
        return float(value), [float(slope @ x), float(slope.sum())]

    found = minimize(loss, (1.0, 0.0), jac=True, method="L-BFGS-B", bounds=((0, None), (None, None)),
                     options={"ftol": 1e-14, "gtol": 1e-10})  # fmt: skip
    scale = float(found.x[0]) / spread
    bias = float(found.x[1]) - scale * center
    logit = scale * values + bias
    hard = torch.nn.functional.binary_cross_entropy_with_logits(logit, same.double(), reduction="none")
    return PairLogistic(scale, bias, float((weight * hard).sum()))


def pair_auroc_interval(
    score: Vector,
    is_same: Vector,
    patient: Int64[Tensor, "pair 2"],
    *,
    generator: torch.Generator,
    num_replicates: int = 2_000,
    confidence: float = 0.95,
) -> BootstrapInterval:
    """AUROC of pairs of one person against pairs of two, with an interval by bootstrap over patients.

    A patient drawn m times brings its own pairs m times and a pair with a patient drawn k times m · k times. Replicates
    without a pair of one kind are left out of the quantiles. The network is held fixed.

    Args:
        score: Larger means more alike.
        is_same: 1 for pairs of one person.
        patient: The persons of both images.
        generator: CPU generator of the draws.
        num_replicates: At least 1.
        confidence: In (0, 1).

    Raises:
        EvaluationError: No pair of a kind, patients that contradict ``is_same``, or settings out of range.
    """
    values, same = check_scores(score, is_same, is_probability=False)
    _require_both(same)
    if patient.shape != (len(values), 2) or bool(((patient[:, 0] == patient[:, 1]) != (same == 1)).any()):
        raise EvaluationError(
            "patient must hold two numbers a pair, equal exactly where is_same is 1, "
            f"got shape {tuple(patient.shape)}. Check how the pairs were drawn."
        )
    _, row = patient.unique(return_inverse=True)
    persons = torch.arange(int(row.max()) + 1)
    draws = group_weights(
        torch.zeros_like(persons), persons, generator=generator, num_replicates=num_replicates
    )
    ones, twos = same == 1, same == 0
    replicates = [
        weighted_attack_auroc(
            values[ones],
            values[twos],
            drawn[:, row[ones, 0]],
            drawn[:, row[twos, 0]] * drawn[:, row[twos, 1]],
        )
        for drawn in draws
    ]
    return replicate_intervals({"auroc": torch.cat(replicates)}, confidence)["auroc"]


def _check_pairs(probability: Vector, is_same: Vector) -> tuple[Float[Tensor, " pair"], Int[Tensor, " pair"]]:
    same = as_tensor(is_same, "is_same").long()
    score, target = check_scores(probability, same, is_probability=True, name="probability")
    _require_both(target)
    return score, target


def _require_both(same: Int[Tensor, " pair"]) -> int:
    ones = int(same.sum())
    if ones in (0, len(same)):
        raise EvaluationError(
            f"is_same must hold pairs of one person and of two, got {ones} and {len(same) - ones}. "
            "Hold out patients with at least two images."
        )
    return ones


def _check_rule(rule: str, value: float | None) -> None:
    if rule not in RULES:
        raise EvaluationError(f"rule must be one of {', '.join(RULES)}, got {rule!r}.")
    if rule == "youden":
        if value is not None:
            raise EvaluationError(
                f"The rule youden takes no value, got {value}. Use fixed, fpr or fnr with it."
            )
        return
    check_number(
        value, f"value of the rule {rule}", low=0.0, high=1.0, remedy="It is a rate or a probability."
    )


def _thresholds(score: Float[Tensor, " pair"]) -> Float[Tensor, " threshold"]:
    """One threshold for each way to cut the scores: below all, halfway between neighbors, at the largest.

    Halfway, because a probability computed again in batches of another size differs in its last digits.
    """
    distinct = score.unique(sorted=True)
    below = torch.nextafter(distinct[:1], distinct.new_tensor([-1.0]))
    halfway = (distinct[:-1] + distinct[1:]) / 2
    return torch.cat([below, torch.where(halfway < distinct[1:], halfway, distinct[:-1]), distinct[-1:]])


def _chosen(
    thresholds: Float[Tensor, " threshold"],
    positive: Float[Tensor, " one"],
    negative: Float[Tensor, " two"],
    rule: str,
    value: float | None,
) -> float:
    missed, passed = (torch.searchsorted(part, thresholds, right=True) for part in (positive, negative))
    if rule == "youden":
        # In whole numbers: equal differences must stay equal.
        return float(thresholds[int((passed * len(positive) - missed * len(negative)).argmax())])
    assert value is not None
    # A rate is a fraction of few pairs: 1e-9 keeps 0.1 from missing 1/10.
    if rule == "fpr":
        return float(thresholds[1 - passed.double() / len(negative) <= value + 1e-9][0])
    return float(thresholds[missed.double() / len(positive) <= value + 1e-9][-1])
