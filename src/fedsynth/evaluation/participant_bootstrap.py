"""Bootstrap over participants, for metrics of predictions and of membership attacks together.

A participant may have many records (the segments of an interview), and those are not independent: what is drawn with
replacement is participants, and all records of a drawn one count. Test, training and validation participants are drawn
each by themselves; test and validation ones from all there are, training ones client by client, since clients are fixed
and a personal model was trained on one of them. All metrics of all systems see the same draws, so functions of several
metrics (PPS) and differences between systems have intervals, too.

The intervals describe the sampling of participants only, not training randomness; report seeds separately.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.bootstrap import BootstrapInterval, PairedDifference, _difference, _interval
from fedsynth.evaluation.checks import EvaluationError, check_generator, check_integer, check_number
from fedsynth.evaluation.pairwise import CHUNK_ELEMENTS

Replicates = dict[str, Float[Tensor, " sample_and_replicate"]]


class ParticipantDraw(NamedTuple):
    """How often each participant (ascending number) was drawn in each replicate; all 1 for the sample itself."""

    train: Float[Tensor, "replicate participant"]
    val: Float[Tensor, "replicate participant"]
    test: Float[Tensor, "replicate participant"]


def participant_means(
    values: Float[Tensor, "model n channel"], participant: Int[Tensor, " n"]
) -> Float[Tensor, "model participant channel"]:
    """Mean over the records of each participant, participants in ascending order of their numbers; float64."""
    numbers, row = participant.unique(sorted=True, return_inverse=True)
    sums = values.new_zeros(len(values), len(numbers), values.shape[2], dtype=torch.float64)
    count = torch.bincount(row, minlength=len(numbers))
    return sums.index_add_(1, row, values.double()) / count.unsqueeze(1)


def participant_constant(
    values: Int[Tensor, " n"], participant: Int[Tensor, " n"], name: str
) -> Int[Tensor, " participant"]:
    """The value that all records of a participant share, participants in ascending order of their numbers.

    Raises:
        EvaluationError: A participant whose records differ.
    """
    numbers, row = participant.unique(sorted=True, return_inverse=True)
    shared = values.new_empty(len(numbers)).scatter_(0, row, values)
    differs = shared[row] != values
    if bool(differs.any()):
        raise EvaluationError(
            f"{name} must be the same for all records of a participant, but those of participant "
            f"{int(participant[differs][0])} differ. Check how records were assigned to participants."
        )
    return shared


def draw_participants(
    *,
    train_client: Int[Tensor, " participant"],
    num_val: int,
    num_test: int,
    num_replicates: int,
    generator: torch.Generator,
) -> Iterator[ParticipantDraw]:
    """First the sample, then the draws of all replicates, a bounded number at a time and the same whatever that is.

    Args:
        train_client: Client of every training participant: each client keeps its number of participants.
        num_val: Validation participants.
        num_test: Test participants.
        num_replicates: At least 1.
        generator: CPU generator; split into one stream for each of the three groups.

    Raises:
        EvaluationError: A group without participants, or settings out of range.
    """
    check_generator(generator)
    check_integer(num_replicates, "num_replicates", remedy="The usual value is 2000.")
    strata = (
        train_client.cpu(),
        *(torch.zeros(check_integer(size, name), dtype=torch.int64)
          for size, name in ((num_val, "num_val"), (num_test, "num_test"))),
    )  # fmt: skip
    check_integer(len(train_client), "the number of training participants")
    streams = [
        torch.Generator().manual_seed(int(torch.randint(2**63 - 1, (), generator=generator))) for _ in strata
    ]
    yield ParticipantDraw(*(torch.ones(1, len(stratum), dtype=torch.float64) for stratum in strata))
    step = max(1, CHUNK_ELEMENTS // max(map(len, strata)))
    for start in range(0, num_replicates, step):
        size = min(step, num_replicates - start)
        yield ParticipantDraw(*(_draw(*pair, size) for pair in zip(strata, streams, strict=True)))


def _draw(stratum: Int[Tensor, " p"], stream: torch.Generator, size: int) -> Float[Tensor, "replicate p"]:
    """Multiplicities; of every stratum as many are drawn as it has."""
    members, order = stratum.sort(stable=True)
    _, counts = members.unique_consecutive(return_counts=True)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    uniform = torch.rand(size, len(stratum), generator=stream, dtype=torch.float64)
    drawn = order[(uniform * counts.repeat_interleave(counts)).long() + first]
    weight = torch.zeros(size, len(stratum), dtype=torch.float64)
    return weight.scatter_add_(1, drawn, torch.ones((), dtype=torch.float64).expand_as(drawn))


def weighted_attack_auroc(
    member: Float[Tensor, " n"],
    non_member: Float[Tensor, " m"],
    member_weight: Float[Tensor, "replicate n"],
    non_member_weight: Float[Tensor, "replicate m"],
) -> Float[Tensor, " replicate"]:
    """AUROC with members as positives for each row of weights, ties counting one half; inputs already validated.

    A member beats V(s-) of the non-members' weight below its score s and ties with V(s) - V(s-), so it wins
    (V(s-) + V(s)) / 2. NaN where a group has no weight.
    """
    ordered, order = non_member.sort()
    cumulative = torch.nn.functional.pad(non_member_weight[:, order].cumsum(dim=1), (1, 0))
    below = torch.searchsorted(ordered, member)
    not_above = torch.searchsorted(ordered, member, right=True)
    # Members between the same two non-members win the same: summing their weights first makes the product small.
    slot, group = (below * (len(ordered) + 1) + not_above).unique(return_inverse=True)
    weight = member_weight.new_zeros(len(member_weight), len(slot)).index_add_(1, group, member_weight)
    low, high = slot.div(len(ordered) + 1, rounding_mode="floor"), slot.remainder(len(ordered) + 1)
    wins = (weight * (cumulative[:, low] + cumulative[:, high])).sum(dim=1) / 2
    return wins / (member_weight.sum(dim=1) * non_member_weight.sum(dim=1))


def replicate_intervals(replicates: Replicates, confidence: float = 0.95) -> dict[str, BootstrapInterval]:
    """Percentile interval of every metric; the estimate is the sample's own value, the first of each row.

    Raises:
        EvaluationError: A confidence outside (0, 1), or no replicates.
    """
    _check(replicates, confidence)
    return {
        name: BootstrapInterval(float(value[0]), *_interval(value[1:], confidence))
        for name, value in replicates.items()
    }


def replicate_differences(
    first: Replicates, second: Replicates, confidence: float = 0.95
) -> dict[str, PairedDifference]:
    """First minus second for the metrics both have; the replicates must come from the same draws.

    Two-sided p-values and their limits: see `paired_bootstrap`.

    Raises:
        EvaluationError: A confidence outside (0, 1), no replicates, or different numbers of them.
    """
    _check(first, confidence)
    _check(second, confidence)
    names = [name for name in first if name in second]
    for name in names:
        if first[name].shape != second[name].shape:
            raise EvaluationError(
                f"replicates of {name} must be as many in both systems, got {len(first[name]) - 1} and "
                f"{len(second[name]) - 1}. Take both from the same draws."
            )
    return {name: _difference(first[name] - second[name], confidence) for name in names}


def _check(replicates: Replicates, confidence: float) -> None:
    check_number(confidence, "confidence", low=0.0, high=1.0, is_open=True, remedy="The usual value is 0.95.")
    for name, value in replicates.items():
        if value.ndim != 1 or len(value) < 2:
            raise EvaluationError(
                f"{name} must hold the sample's value and at least one replicate, got shape {tuple(value.shape)}."
            )
