"""UAR and Privacy-Performance Score as torchmetrics classes; conventions as in `fedsynth.evaluation.streaming`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, Vector, as_tensor, require_finite
from fedsynth.evaluation.privacy_performance import (
    check_decisions,
    decision_metrics,
    normalized_privacy_score,
    privacy_performance_score,
)
from fedsynth.evaluation.ranking import auroc
from fedsynth.evaluation.streaming import Gatherer


class StreamingDecisionMetrics(Gatherer):
    """`decision_metrics` (accuracy … uar) of predicted classes, under the same names."""

    inputs = ("predicted", "target")
    is_differentiable: bool = False
    higher_is_better: bool = True

    def update(self, *, predicted: Vector, target: Vector) -> None:
        """Add a batch of predicted and true classes, 0 or 1; an empty one changes nothing."""
        given = as_tensor(predicted, "predicted")
        if given.numel() == 0 and given.shape == as_tensor(target, "target").shape:
            return
        called, labels = check_decisions(given, target)
        self.append("predicted", called)
        self.append("target", labels)

    def compute(self) -> dict[str, Tensor]:
        """See `decision_metrics`."""
        return self.scalars(decision_metrics(self.joined("predicted"), self.joined("target")))


class StreamingPrivacyPerformance(Gatherer):
    """``uar``, ``attack_auroc``, ``privacy_score`` and ``pps`` of one system (FedMPA).

    The attack score is any number that is larger for records the attacker takes for members, e.g. the largest class
    probability.
    """

    inputs = ("predicted", "target", "member_score", "non_member_score")
    is_differentiable: bool = False
    higher_is_better: bool = True

    def update(
        self,
        *,
        predicted: Vector | None = None,
        target: Vector | None = None,
        member_score: Vector | None = None,
        non_member_score: Vector | None = None,
    ) -> None:
        """Add predicted and true classes of test records, attack scores of members, of non-members, or all of them."""
        batches: list[tuple[str, Tensor]] = []
        if (predicted is None) != (target is None):
            raise EvaluationError("predicted and target must be given together; one of them is missing.")
        if predicted is not None and target is not None:
            called, labels = as_tensor(predicted, "predicted"), as_tensor(target, "target")
            if called.numel() or called.shape != labels.shape:
                called, labels = check_decisions(called, labels)
                batches += [("predicted", called), ("target", labels)]
        for name, given in (("member_score", member_score), ("non_member_score", non_member_score)):
            if given is None:
                continue
            score = as_tensor(given, name).double()
            if score.ndim != 1:
                raise EvaluationError(f"{name} must have shape [records], got {tuple(score.shape)}.")
            require_finite(score, name)
            batches.append((name, score))
        for name, values in batches:  # all were checked before any is stored
            self.append(name, values)

    def compute(self) -> dict[str, Tensor]:
        """See `decision_metrics`, `normalized_privacy_score` and `privacy_performance_score`."""
        uar = decision_metrics(self.joined("predicted"), self.joined("target"))["uar"]
        members, others = self.joined("member_score"), self.joined("non_member_score")
        attack = auroc(
            torch.cat([members, others]),
            torch.cat([torch.ones_like(members), torch.zeros_like(others)]),
        )
        privacy_score = normalized_privacy_score(attack)
        return self.scalars(
            {
                "uar": uar,
                "attack_auroc": attack,
                "privacy_score": privacy_score,
                "pps": privacy_performance_score(uar, privacy_score),
            }
        )
