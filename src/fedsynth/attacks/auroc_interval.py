"""Bootstrap intervals of membership AUROCs, members and non-members drawn separately.

Notation: s_i score of member i of n; v_g how often the non-members of distinct score g (ascending) were drawn. A
member whose score lies between the distinct scores k-1 and k beats V_k = Σ_{g<k} v_g of them; one that ties with
score k beats V_k + v_k / 2. There are 2 u + 1 such places ("slots") for u distinct scores, so a replicate is two
short histograms, and its AUROC their inner product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, Vector, as_tensor, check_generator, check_integer
from fedsynth.evaluation.neighbors import CHUNK_ELEMENTS


class AUROCInterval(NamedTuple):
    """AUROC of the sample and the percentile interval of its replicates."""

    estimate: float
    low: float
    high: float


def membership_auroc_intervals(
    member: Mapping[str, Vector],
    non_member: Mapping[str, Vector],
    *,
    generator: torch.Generator,
    num_replicates: int = 2_000,
    confidence: float = 0.95,
) -> dict[str, AUROCInterval]:
    """AUROC of several scores for the same records, each with its interval from the same replicates.

    Both groups are drawn with replacement and keep their sizes, so every replicate is defined, and equal scores get
    equal intervals. The attacked model is held fixed: what another training run would give is not covered.

    Args:
        member: Score by name, one value per member; larger means "more likely a member".
        non_member: The same scores of the non-members.
        generator: CPU generator of the draws.
        num_replicates: At least 1.
        confidence: In (0, 1).

    Raises:
        EvaluationError: Names that differ, no records, lengths that differ between scores, values that are not
            finite, or settings out of range.
    """
    check_generator(generator)
    num_replicates = check_integer(num_replicates, "num_replicates", remedy="The usual value is 2000.")
    if not 0 < confidence < 1:
        raise EvaluationError(f"confidence must be in (0, 1), got {confidence}. The usual value is 0.95.")
    if not member or member.keys() != non_member.keys():
        raise EvaluationError(
            f"member and non_member must hold the same scores, at least one, got {sorted(member)} and "
            f"{sorted(non_member)}."
        )
    inside, outside = _check_group(member, "member"), _check_group(non_member, "non-member")
    num_members, num_others = (len(next(iter(group.values()))) for group in (inside, outside))
    source = _first_of_equals(inside, outside)
    places = {name: _slots(inside[name], outside[name]) for name in set(source.values())}
    replicates: dict[str, list[Tensor]] = {name: [] for name in places}
    step = max(1, CHUNK_ELEMENTS // (num_members + num_others))
    for start in range(0, num_replicates, step):
        size = min(step, num_replicates - start)
        drawn = torch.randint(num_members, (size, num_members), generator=generator)
        others = torch.randint(num_others, (size, num_others), generator=generator)
        for name, place in places.items():
            replicates[name].append(_auroc(place, drawn, others))
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    everyone = torch.arange(num_members).unsqueeze(0), torch.arange(num_others).unsqueeze(0)
    found = {
        name: AUROCInterval(
            float(_auroc(places[name], *everyone)), *torch.cat(parts).quantile(tails).tolist()
        )
        for name, parts in replicates.items()
    }
    return {name: found[first] for name, first in source.items()}


def _first_of_equals(member: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, str]:
    """Every name → the first name with the same values: two-class confidence and entropy need one bootstrap."""
    source: dict[str, str] = {}
    for name in member:
        equals = (
            first
            for first in source
            if torch.equal(member[first], member[name]) and torch.equal(other[first], other[name])
        )
        source[name] = next(equals, name)
    return source


class _Places(NamedTuple):
    slot: Int[Tensor, " member"]
    rank: Int[Tensor, " non_member"]
    num_distinct: int


def _slots(member: Float[Tensor, " member"], other: Float[Tensor, " non_member"]) -> _Places:
    """Where members fall among the distinct scores of non-members: 2 k below score k, 2 k + 1 on it."""
    distinct, rank = other.unique(sorted=True, return_inverse=True)
    position = torch.searchsorted(distinct, member)
    is_tied = distinct[position.clamp(max=len(distinct) - 1)] == member
    return _Places(2 * position + is_tied, rank, len(distinct))


def _auroc(
    places: _Places, members: Int[Tensor, "replicate n"], others: Int[Tensor, "replicate m"]
) -> Float[Tensor, " replicate"]:
    """Σ_slot count(slot) · non-members beaten there, over n m."""
    count = _histogram(places.slot[members], 2 * places.num_distinct + 1)
    drawn = _histogram(places.rank[others], places.num_distinct)
    below = torch.nn.functional.pad(drawn.cumsum(dim=1), (1, 0))  # [replicate, distinct + 1]
    wins = (count[:, ::2] * below).sum(dim=1) + (count[:, 1::2] * (below[:, :-1] + drawn / 2)).sum(dim=1)
    return wins / (members.shape[1] * others.shape[1])


def _histogram(index: Int[Tensor, "replicate n"], size: int) -> Float[Tensor, "replicate size"]:
    empty = torch.zeros(len(index), size, dtype=torch.float64)
    return empty.scatter_add_(1, index, torch.ones((), dtype=torch.float64).expand_as(index))


def _check_group(scores: Mapping[str, Vector], group: str) -> dict[str, Float[Tensor, " n"]]:
    values = {name: as_tensor(score, f"{group} {name}").double().cpu() for name, score in scores.items()}
    first = next(iter(values.values()))
    for name, tensor in values.items():
        if tensor.ndim != 1 or len(tensor) == 0 or tensor.shape != first.shape:
            raise EvaluationError(
                f"{group} {name} must hold one value per record, the same records for every score, got shape "
                f"{tuple(tensor.shape)} beside {tuple(first.shape)}."
            )
        if not bool(tensor.isfinite().all()):
            raise EvaluationError(
                f"{group} {name} holds {int((~tensor.isfinite()).sum())} NaN or infinite values of {len(tensor)}. "
                "Look for a diverged model."
            )
    return values
