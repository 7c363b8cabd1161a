"""Test metrics, membership AUROCs, ρ and PPS of whole systems, with replicates over participants (FedMPA).

A system answers with one model for everybody, or with one personal model per client. Of personal models every rate and
AUROC is the mean over models, each tested on all test records, and the members of a model are the training records of
its own client. ρ and PPS are functions of these means, so that every row of a table satisfies their formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, require_finite
from fedsynth.evaluation.participant_bootstrap import (
    ParticipantDraw,
    Replicates,
    draw_participants,
    participant_constant,
    weighted_attack_auroc,
)
from fedsynth.evaluation.privacy_performance import (
    normalized_privacy_score,
    privacy_performance_score,
    weighted_decision_metrics,
)

#: Metric → (attack score, split of the non-members); members are always the training records.
ATTACKS = {
    "attack_auroc": ("max_probability", "test"),
    "attack_auroc_true_class": ("true_class", "test"),
    "attack_auroc_val": ("max_probability", "val"),
}
SPLITS: tuple[Literal["train", "val", "test"], ...] = ("train", "val", "test")


@dataclass(frozen=True)
class ScoredSplit:
    """The records (or participants) of a split and how sure every model is of them.

    Attributes:
        participant: Number of whom a record belongs to; any integers.
        label: True class, 0 or 1.
        client: Of a training record; not read elsewhere.
        attack_score: By name, larger meaning "more likely a member"; see `ATTACKS` for those that are read.

    Raises:
        EvaluationError: No records, lengths that differ, labels other than 0 and 1, or scores that are not finite.
    """

    participant: Int[Tensor, " n"]
    label: Int[Tensor, " n"]
    client: Int[Tensor, " n"]
    attack_score: Mapping[str, Float[Tensor, "model n"]]

    def __post_init__(self) -> None:
        size = self.participant.shape
        if len(size) != 1 or not size[0] or self.label.shape != size or self.client.shape != size:
            raise EvaluationError(
                f"participant, label and client must hold one number per record, at least one, got {tuple(size)}, "
                f"{tuple(self.label.shape)} and {tuple(self.client.shape)}."
            )
        if not bool(((self.label == 0) | (self.label == 1)).all()):
            raise EvaluationError(
                f"label must hold only 0 and 1 (1 = positive), got {self.label.unique()[:5].tolist()}."
            )
        wanted = {name for name, _ in ATTACKS.values()}
        if not wanted <= self.attack_score.keys():
            raise EvaluationError(
                f"attack_score must hold {', '.join(sorted(wanted))}, got {sorted(self.attack_score)}."
            )
        for name, score in self.attack_score.items():
            if score.ndim != 2 or score.shape[1:] != size or score.dtype != torch.float64:
                raise EvaluationError(
                    f"attack_score {name} must be float64 of shape [models, {size[0]}], got {score.dtype} "
                    f"{tuple(score.shape)}."
                )
            require_finite(score, f"attack_score {name}")


@dataclass(frozen=True)
class ScoredSystem:
    """All that the metrics of a system are functions of.

    Attributes:
        train, val, test: Its splits.
        prediction: Class that each model gives each test record.
        rerouted: Test records that were not classified by the largest probability; None where none can be.

    Raises:
        EvaluationError: Numbers of models or test records that differ, personal models that are not as many as the
            clients, or predictions other than 0 and 1.
    """

    train: ScoredSplit
    val: ScoredSplit
    test: ScoredSplit
    prediction: Int[Tensor, "model n"]
    rerouted: Bool[Tensor, "model n"] | None = None

    def __post_init__(self) -> None:
        shape = (self.num_models, len(self.test.label))
        rows = {len(score) for name in SPLITS for score in getattr(self, name).attack_score.values()}
        given = self.prediction if self.rerouted is None else self.rerouted
        if self.prediction.shape != shape or given.shape != shape or rows != {self.num_models}:
            raise EvaluationError(
                f"predictions must have shape [models, test records] {shape}, and every split scores of the same "
                f"models, got {tuple(self.prediction.shape)} and scores of {sorted(rows)} models."
            )
        if not bool(((self.prediction == 0) | (self.prediction == 1)).all()):
            raise EvaluationError(
                f"predictions must be 0 or 1, got {self.prediction.unique()[:5].tolist()}. Give classes, not scores."
            )
        clients = len(self.train.client.unique())
        if self.num_models not in (1, clients):
            raise EvaluationError(
                f"a system must have one model, or one for each of its {clients} clients, got {self.num_models}."
            )

    @property
    def num_models(self) -> int:
        return len(self.prediction)

    def num_participants(self, split: str) -> int:
        """Of ``train``, ``val`` or ``test``."""
        return len(getattr(self, split).participant.unique())

    def metrics(self, draw: ParticipantDraw) -> dict[str, Float[Tensor, " replicate"]]:
        """Every metric for every replicate of a draw of this system's participants."""
        weight: dict[str, Tensor] = {
            name: getattr(draw, name)[:, _row(getattr(self, name))] for name in SPLITS
        }
        found = weighted_decision_metrics(self.prediction, self.test.label, weight["test"])
        metrics = {name: value.mean(dim=1) for name, value in found.items()}
        if self.rerouted is not None:
            share = weight["test"] @ self.rerouted.double().mean(dim=0)
            metrics["rerouted_share"] = share / weight["test"].sum(dim=1)
        metrics |= self._attack_aurocs(weight)
        metrics["privacy_score"] = normalized_privacy_score(metrics["attack_auroc"])
        metrics["pps"] = privacy_performance_score(metrics["uar"], metrics["privacy_score"])
        return metrics

    def _attack_aurocs(self, weight: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # fidelity: personal-model-members
        owners = self.train.client.unique(sorted=True)
        everyone = torch.ones_like(self.train.client, dtype=torch.bool)
        members = [everyone] if self.num_models == 1 else [self.train.client == owner for owner in owners]
        return {
            metric: torch.stack(
                [
                    weighted_attack_auroc(
                        self.train.attack_score[score][model, own],
                        getattr(self, split).attack_score[score][model],
                        weight["train"][:, own],
                        weight[split],
                    )
                    for model, own in enumerate(members)
                ]
            ).mean(dim=0)
            for metric, (score, split) in ATTACKS.items()
        }


def _row(split: ScoredSplit) -> Int[Tensor, " n"]:
    """Column of every record's participant in a draw."""
    return split.participant.unique(sorted=True, return_inverse=True)[1]


def system_replicates(
    systems: Mapping[str, ScoredSystem], *, generator: torch.Generator, num_replicates: int = 2_000
) -> dict[str, Replicates]:
    """Metrics of several systems, or of one system at several levels, all on the same draws of participants.

    Args:
        systems: By name; in every split they must have the same participants with the same clients.
        generator: CPU generator of the draws.
        num_replicates: At least 1.

    Returns:
        By system and metric, the value of the sample followed by those of the replicates: accuracy, precision,
        sensitivity, specificity, f1, uar, rerouted_share (if anything can be re-routed), attack_auroc,
        attack_auroc_true_class, attack_auroc_val, privacy_score, pps. NaN where a ratio has no cases.

    Raises:
        EvaluationError: No system, systems of different participants, or settings out of range.
    """
    if not systems:
        raise EvaluationError("systems must hold at least one system, got none.")
    first = next(iter(systems.values()))
    for name, system in systems.items():
        for split in SPLITS:
            _check_same_participants(name, split, getattr(system, split), getattr(first, split))
    draws = draw_participants(
        train_client=_clients(first.train),
        num_val=first.num_participants("val"),
        num_test=first.num_participants("test"),
        num_replicates=num_replicates,
        generator=generator,
    )
    parts: dict[str, list[dict[str, Tensor]]] = {name: [] for name in systems}
    for draw in draws:
        for name, system in systems.items():
            parts[name].append(system.metrics(draw))
    return {
        name: {metric: torch.cat([row[metric] for row in rows]) for metric in rows[0]}
        for name, rows in parts.items()
    }


def _clients(split: ScoredSplit) -> Int[Tensor, " participant"]:
    return participant_constant(split.client, split.participant, "client")


def _check_same_participants(name: str, split: str, one: ScoredSplit, other: ScoredSplit) -> None:
    mine, theirs = one.participant.unique(), other.participant.unique()
    if not torch.equal(mine, theirs):
        raise EvaluationError(
            f"the {split} participants of {name!r} must be those of the other systems, got {len(mine)} and "
            f"{len(theirs)}, of which {len(set(mine.tolist()) & set(theirs.tolist()))} are the same."
        )
    kinds = ("label", "client") if split == "train" else ("label",)
    for kind in kinds:
        values = [participant_constant(getattr(s, kind), s.participant, kind) for s in (one, other)]
        if not torch.equal(*values):
            raise EvaluationError(
                f"the {split} participants of {name!r} must have the {kind}s they have in the other systems, but "
                f"participant {int(mine[values[0] != values[1]][0])} does not."
            )
