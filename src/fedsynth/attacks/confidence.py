"""The confidence attack of FedMPA: how sure the classifier is of a record betrays whether it was trained on it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks.membership import confidence_score, loss_score, membership_attack
from fedsynth.evaluation.checks import PointSet


class ConfidenceAttack(NamedTuple):
    """AUROC, members as positives: 0.5 is chance.

    Attributes:
        max_probability: Score is the largest class probability; needs no label.
        true_class: Score is the probability of the true class.
    """

    max_probability: float
    true_class: float


def confidence_attack_auroc(
    *,
    member_probability: PointSet,
    member_label: Tensor,
    non_member_probability: PointSet,
    non_member_label: Tensor,
) -> ConfidenceAttack:
    """AUROC of the confidence attack, MIA^conf of FedMPA, in both readings of "confidence".

    With train records as members and test records as non-members a shift between the splits counts as membership;
    give the value against validation records beside it.

    Args:
        member_probability, non_member_probability: Rows of class probabilities of one model, float64 if possible.
        member_label, non_member_label: True classes.

    Raises:
        EvaluationError: As for `membership_attack`.
    """
    # fidelity: confidence-attack
    found = membership_attack(
        member_probability=member_probability,
        member_label=member_label,
        non_member_probability=non_member_probability,
        non_member_label=non_member_label,
    )
    # The loss is a decreasing function of the true class's probability: the same order, hence the same AUROC.
    return ConfidenceAttack(found.confidence_auroc, found.loss_auroc)


def confidence_attack_scores(
    probability: Float[Tensor, "model n class"], label: Int[Tensor, " n"]
) -> dict[str, Float[Tensor, "model n"]]:
    """The scores of `confidence_attack_auroc` for every model, larger meaning "more likely a member"."""
    return {
        "max_probability": torch.stack([confidence_score(one) for one in probability]),
        "true_class": torch.stack([loss_score(one, label) for one in probability]),
    }
