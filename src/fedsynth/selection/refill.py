"""Filling the places of images without an allowed candidate, by further allowed candidates of others of the group.

Dropping such images shifts the mix of classes (half of the normals at 28 pixels, few of the others), which costs
more than the filter itself; refilling keeps the mix at the price of several images made from one source.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedsynth.selection.inputs import SelectionInputError


@dataclass(frozen=True, eq=False)
class Spare:
    """Allowed candidates that were not chosen, one entry each.

    Attributes:
        source: Row of the image it was made of.
        loss: Ranking loss; smaller is better.
        index: What the caller finds the candidate by.
    """

    source: Int64[Tensor, " m"]
    loss: Float[Tensor, " m"]
    index: Int64[Tensor, " m"]


@dataclass(frozen=True, eq=False)
class Refill:
    """What to emit besides, or instead of, one image a source.

    Attributes:
        spare: Entries of the spare candidates to add.
        kept: Of the sources with a chosen candidate those whose choice is kept.
        wanted: Images each group should have in the end.
        missing: How many of them there are not.
    """

    spare: Int64[Tensor, " s"]
    kept: Bool[Tensor, " n"]
    wanted: Int64[Tensor, " g"]
    missing: Int64[Tensor, " g"]


def balanced_refill(
    group: Int64[Tensor, " n"],
    has_choice: Bool[Tensor, " n"],
    spare: Spare,
    max_per_source: int,
    images_per_source: int = 1,
) -> Refill:
    """As many images of each group as it has sources, or a multiple, as far as allowed candidates go.

    Sources give their second best before any gives its third; among equals the smaller loss goes first.

    Args:
        group: Of each source.
        has_choice: Whether a candidate of it was chosen.
        spare: The others that are allowed.
        max_per_source: Images made of one source in all, the chosen one included.
        images_per_source: Images wanted for each source, on average over its group.

    Raises:
        SelectionInputError: If there are no groups, entries point nowhere, or ``max_per_source`` is below 1.
    """
    order, available = _in_order(group, has_choice, spare, max_per_source)
    return _filled(group, has_choice, spare, order, torch.bincount(group) * images_per_source, available)


def true_mix_refill(
    group: Int64[Tensor, " n"],
    has_choice: Bool[Tensor, " n"],
    spare: Spare,
    loss: Float[Tensor, " n"],
    max_per_source: int,
    images_per_source: int = 1,
) -> Refill:
    """The largest set of exactly the sources' mix of groups, also if one runs short of allowed candidates.

    The scarcest group sets the size; of the others the choices with the largest loss are left out. Counts are
    rounded down.

    Args:
        group: Of each source.
        has_choice: Whether a candidate of it was chosen.
        spare: The others that are allowed.
        loss: Of each choice; any number where there is none.
        max_per_source: Images made of one source in all.
        images_per_source: Images wanted for each source, if the scarcest group had enough.

    Raises:
        SelectionInputError: As ``balanced_refill``.
    """
    order, available = _in_order(group, has_choice, spare, max_per_source)
    sizes = torch.bincount(group) * images_per_source
    occupied = sizes > 0
    share = float((available[occupied] / sizes[occupied]).amin().clamp(max=1))
    # The scarcest group itself must come out whole: its share times its size may round to just below.
    wanted = (sizes * share + 1e-6).floor().long()
    kept = has_choice.clone()
    for g in range(len(sizes)):
        rows = (has_choice & (group == g)).nonzero()[:, 0]
        worst_last = rows[loss[rows].sort(stable=True).indices]
        kept[worst_last[int(wanted[g]) :]] = False
    return _filled(group, kept, spare, order, wanted, available)


def _in_order(
    group: Tensor, has_choice: Tensor, spare: Spare, max_per_source: int
) -> tuple[Int64[Tensor, " s"], Int64[Tensor, " g"]]:
    """Spare entries that may be used, best first, and how many images each group can have."""
    if not len(group) or max_per_source < 1:
        raise SelectionInputError(
            f"A refill needs sources and at least 1 image a source, got {len(group)} and {max_per_source}."
        )
    if len(spare.source) and not 0 <= int(spare.source.min()) <= int(spare.source.max()) < len(group):
        raise SelectionInputError("Spare candidates name sources that do not exist.")
    by_loss = spare.loss.sort(stable=True).indices
    order = by_loss[spare.source[by_loss].sort(stable=True).indices]  # by source, then by loss
    source = spare.source[order]
    first = torch.searchsorted(source, source)  # where the run of this source begins
    place = torch.arange(len(source)) - first + has_choice[source].long()
    order, place = order[place < max_per_source], place[place < max_per_source]
    # By place first, so that no source gives its third before all gave their second; then by loss.
    order_loss = spare.loss[order].sort(stable=True).indices
    order = order[order_loss[place[order_loss].sort(stable=True).indices]]
    counts = torch.bincount(group[spare.source[order]], minlength=int(group.max()) + 1)
    return order, counts + torch.bincount(group[has_choice], minlength=len(counts))


def _filled(
    group: Tensor, kept: Tensor, spare: Spare, order: Tensor, wanted: Tensor, available: Tensor
) -> Refill:
    needed = wanted - torch.bincount(group[kept], minlength=len(wanted))
    of_group = group[spare.source[order]]
    taken = [order[of_group == g][: max(0, int(needed[g]))] for g in range(len(wanted))]
    chosen = torch.cat(taken) if taken else order[:0]
    return Refill(chosen, kept, wanted, (wanted - available).clamp(min=0))
