"""Numbers over repetitions of an attack: two intervals that answer different questions, and paired differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from scipy import special
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, as_tensor


class Spread(NamedTuple):
    """Over repetitions.

    Attributes:
        mean: Mean.
        std: Sample standard deviation (ddof = 1); NaN for one repetition.
        low, high: 2.5 and 97.5 % quantiles: where a single repetition falls ("repetition interval").
        mean_low, mean_high: Student 95 % interval of the mean ("mean interval"); NaN for one repetition. It
            narrows with the number of repetitions and is conditional on the records, which all repetitions share.
    """

    mean: float
    std: float
    low: float
    high: float
    mean_low: float
    mean_high: float


def spread(values: Float[Tensor, " repetition"]) -> Spread:
    """Summary of repetitions.

    Raises:
        EvaluationError: If there is no repetition, or `values` is no tensor.
    """
    values = as_tensor(values, "values")
    if values.ndim != 1 or len(values) == 0:
        raise EvaluationError(
            f"values must have shape [repetitions] with at least one, got {tuple(values.shape)}. "
            "Repeat the attack at least once."
        )
    values = values.double()
    mean = float(values.mean())
    low, high = torch.quantile(values, values.new_tensor([0.025, 0.975])).tolist()
    std, margin = float("nan"), float("nan")
    if len(values) > 1:
        std = float(values.std(correction=1))
        margin = float(special.stdtrit(len(values) - 1, 0.975)) * std / len(values) ** 0.5
    return Spread(mean, std, low, high, mean - margin, mean + margin)


@dataclass(frozen=True)
class SummaryAttack:
    """Outcome of one release: per score name, one value a repetition.

    `score_gap` is the mean score of members minus that of non-members, in units of the score. A score that the
    release does not allow (see `released_summary`) is absent from both.
    """

    auroc: dict[str, Float[Tensor, " repetition"]]
    score_gap: dict[str, Float[Tensor, " repetition"]]

    def auroc_spread(self, score: str = "matched_filter") -> Spread:
        return spread(self.auroc[score])

    def score_gap_spread(self, score: str = "matched_filter") -> Spread:
        return spread(self.score_gap[score])


class PairedChange(NamedTuple):
    """AUROC of the private release minus that of the non-private one, on the same candidates."""

    change: Spread
    num_reduced: int
    num_repetitions: int


def paired_change(
    private: SummaryAttack, non_private: SummaryAttack, score: str = "matched_filter"
) -> PairedChange:
    """How noise changed the attack; negative is protection. Both must be paired: one call, or equal generators.

    Raises:
        EvaluationError: Unequal numbers of repetitions, or a score that one of them does not have.
    """
    for attack in (private, non_private):
        if score not in attack.auroc:
            raise EvaluationError(
                f"score must be one that both attacks have, got {score!r}; there are {sorted(attack.auroc)}."
            )
    first, second = private.auroc[score], non_private.auroc[score]
    if first.shape != second.shape:
        raise EvaluationError(
            f"paired attacks need equally many repetitions, got {len(first)} and {len(second)}. "
            "Take both from one call."
        )
    difference = first - second
    return PairedChange(spread(difference), int((difference < 0).sum()), len(difference))


def auroc_rows(scores: Float[Tensor, "score n"], is_member: Bool[Tensor, " n"]) -> Float[Tensor, " score"]:
    """AUROC of many scores of the same candidates at once, ties counting one half (Mann-Whitney)."""
    # Repetitions times scores times releases make this the hot spot of an audit: two sorted look-ups a row.
    members, others = scores[:, is_member].contiguous(), scores[:, ~is_member].sort(dim=1).values
    below = torch.searchsorted(others, members).sum(dim=1)
    not_above = torch.searchsorted(others, members, right=True).sum(dim=1)
    return (below + not_above).double() / (2 * members.shape[1] * others.shape[1])
