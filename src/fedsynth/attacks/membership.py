"""Membership inference from a classifier's own outputs (Yeom et al. 2018; Salem et al. 2019)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, PointSet, check_class_index, check_points
from fedsynth.evaluation.ranking import auroc

_TOLERANCE = 1e-4


class MembershipAttack(NamedTuple):
    """AUROC of each attack: 0.5 is chance, above 0.5 members are recognized."""

    loss_auroc: float
    confidence_auroc: float
    entropy_auroc: float


def loss_score(probability: Float[Tensor, "n c"], label: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """-cross entropy = log p of the true class; p = 0 counts as the smallest normal float64."""
    true_class = probability.gather(1, label.unsqueeze(1)).squeeze(1)
    return true_class.clamp(min=torch.finfo(torch.float64).tiny).log()


def confidence_score(probability: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """The largest class probability."""
    return probability.max(dim=1).values


def entropy_score(probability: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """A score that orders records as the negative entropy does.

    With two classes the entropy is a strictly decreasing function of the largest probability, so that
    probability is returned: the same order, free of the ties and swaps that rounding p log p creates. With
    more classes, the negative entropy itself in nats.
    """
    if probability.shape[1] == 2:
        return confidence_score(probability)
    return torch.special.xlogy(probability, probability).sum(dim=1)


def _check_outputs(probability: PointSet, label: Tensor, name: str) -> tuple[Tensor, Tensor]:
    given = check_points(probability, f"{name} probabilities")
    values = given.double()
    # Half-precision softmax outputs miss a sum of one by their own rounding.
    tolerance = max(_TOLERANCE, given.shape[1] * torch.finfo(given.dtype).eps)
    sums_to_one = (values.sum(dim=1) - 1).abs() < tolerance
    if values.shape[1] < 2 or not bool((values >= 0).all() and sums_to_one.all()):
        raise EvaluationError(
            f"{name} probabilities must be rows [records, classes] of non-negative numbers with sum 1, "
            f"got shape {tuple(values.shape)}. Apply softmax; for a single p1 stack [1 - p1, p1]."
        )
    labels = check_class_index(label, values.shape[1], len(values), f"{name} labels")
    if labels.device != values.device:
        raise EvaluationError(
            f"{name} probabilities and labels must be on one device, got {values.device} and {labels.device}."
        )
    return values, labels


def membership_attack(
    *,
    member_probability: PointSet,
    member_label: Tensor,
    non_member_probability: PointSet,
    non_member_label: Tensor,
) -> MembershipAttack:
    """Loss, maximum-confidence and entropy attacks on class probabilities.

    For two classes confidence and entropy attack have **identical** AUROC, exactly (see `entropy_score`); a
    report that shows different values has a numerical error. Pass float64 softmax outputs: float32 saturates
    at 1.0 beyond a logit difference of about 17 and turns confident records into ties.

    With train records as members and test records as non-members, a shift between the splits counts as
    membership too; the AUROC is an upper reading of leakage.

    Args:
        member_probability, non_member_probability: Rows of class probabilities.
        member_label, non_member_label: True classes.

    Raises:
        EvaluationError: Rows that are no probability distributions, labels out of range, class counts that
            differ.
    """
    members, member_labels = _check_outputs(member_probability, member_label, "member")
    others, other_labels = _check_outputs(non_member_probability, non_member_label, "non-member")
    if members.shape[1] != others.shape[1]:
        raise EvaluationError(
            f"members and non-members must have the same classes, got {members.shape[1]} and "
            f"{others.shape[1]}. Take both from one model."
        )
    if members.device != others.device:
        raise EvaluationError(
            f"members and non-members must be on one device, got {members.device} and {others.device}."
        )
    probability, label = torch.cat([members, others]), torch.cat([member_labels, other_labels])
    is_member = torch.arange(len(label), device=label.device) < len(members)
    return MembershipAttack(
        loss_auroc=auroc(loss_score(probability, label), is_member),
        confidence_auroc=auroc(confidence_score(probability), is_member),
        entropy_auroc=auroc(entropy_score(probability), is_member),
    )
