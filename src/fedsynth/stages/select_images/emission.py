"""Which candidates make the synthetic set: the choices of all rounds, and what fills the places left empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedsynth.errors import DataError, PrivacyError
from fedsynth.selection.ranking import NONE
from fedsynth.selection.refill import Refill, Spare, balanced_refill, true_mix_refill
from fedsynth.stages.select_images.rounds import Round
from fedsynth.stages.select_images.spec import CLASS_BALANCED, DROP, MASK, SelectImagesSettings


@dataclass(frozen=True, eq=False)
class Emission:
    """The synthetic set as candidates, in the order of their sources.

    Attributes:
        round, position, candidate: Where each candidate is.
        source: Training row it is made of.
        weight: Guidance weight it was sampled with.
        is_refill: Whether it is a further one of its source: in place of another, or because several are wanted.
        accepted_in: Of every source the round its choice is of, or NONE.
        kept: Of every source whether its choice is emitted.
        missing: Images of each group that could not be had.
    """

    round: Int64[Tensor, " m"]
    position: Int64[Tensor, " m"]
    candidate: Int64[Tensor, " m"]
    source: Int64[Tensor, " m"]
    weight: Float[Tensor, " m"]
    is_refill: Bool[Tensor, " m"]
    accepted_in: Int64[Tensor, " n"]
    kept: Bool[Tensor, " n"]
    missing: Int64[Tensor, " g"]

    def __len__(self) -> int:
        return len(self.source)


def emission(
    settings: SelectImagesSettings,
    rounds: Sequence[Round],
    group: Int64[Tensor, " n"],
    names: Sequence[str],
    advice: str,
) -> Emission:
    """The candidates to emit.

    Args:
        settings: The filter, and what is done for images without choice.
        rounds: The first one tried every source, further ones those without choice.
        group: Of every source of the first round.
        names: Of the groups.
        advice: What to say if nothing at all passes.

    Raises:
        DataError: If every candidate of every source is flagged, or the true mix of a group without any leaves nothing.
        PrivacyError: If a flagged candidate were to pass a hard mask.
    """
    sources = rounds[0].rows
    place = {row: number for number, row in enumerate(sources.tolist())}
    table = torch.cat([_table(number, one, place) for number, one in enumerate(rounds)])
    choice = table[:, 4] == 1
    if not bool(choice.any()):
        raise DataError(advice)
    accepted_in = torch.full((len(sources),), NONE).scatter(0, table[choice, 0], table[choice, 1])
    loss = torch.cat([one.scores["rank"].flatten() for one in rounds])
    filled = _filled(settings, table, loss, choice, group, accepted_in != NONE)
    kept_choice = choice.nonzero()[:, 0][filled.kept[table[choice, 0]]]
    entries = torch.cat([kept_choice, filled.spare])
    is_refill = torch.cat([torch.zeros(len(kept_choice)), torch.ones(len(filled.spare))]).bool()
    if not len(entries):
        raise DataError(_no_mix(group, accepted_in != NONE, names))
    order = table[entries, 0].sort(stable=True).indices  # a source's own choice before its refills
    entries, is_refill = entries[order], is_refill[order]
    taken = table[entries]
    if settings.filter == MASK and bool(taken[:, 5].any()):
        raise PrivacyError(
            f"{int(taken[:, 5].sum())} flagged candidates were about to be emitted; nothing was written."
        )
    weights = torch.tensor([one.weight for one in rounds])
    return Emission(
        round=taken[:, 1],
        position=taken[:, 2],
        candidate=taken[:, 3],
        source=sources[taken[:, 0]],
        weight=weights[taken[:, 1]],
        is_refill=is_refill,
        accepted_in=accepted_in,
        kept=filled.kept,
        missing=filled.missing,
    )


def _no_mix(group: Tensor, has_choice: Tensor, names: Sequence[str]) -> str:
    shares = ", ".join(
        f"{name} {int((has_choice & (group == number)).sum())} of {int((group == number).sum())}"
        for number, name in enumerate(names)
    )
    return (
        f"Keeping the true mix of classes leaves no image: sources with an unflagged candidate are {shares}, and the "
        "scarcest class sets the size. Say selection.when_all_flagged=class_balanced, or filter less."
    )


def _table(number: int, one: Round, place: dict[int, int]) -> Int64[Tensor, "m 6"]:
    """A row a candidate: source, round, position in the round, candidate, chosen, flagged."""
    rows, width = one.flagged.shape
    position = torch.arange(rows).repeat_interleave(width)
    source = torch.tensor([place[row] for row in one.rows.tolist()])[position]
    candidate = torch.arange(width).repeat(rows)
    chosen = candidate == one.chosen[position]
    columns = (source, torch.full_like(source, number), position, candidate, chosen, one.flagged.flatten())
    return torch.stack([column.long() for column in columns], 1)


def _filled(
    settings: SelectImagesSettings,
    table: Tensor,
    loss: Tensor,
    choice: Tensor,
    group: Tensor,
    has_choice: Tensor,
) -> Refill:
    """What is kept and added under the policy; a set without hard mask has a choice for every source."""
    empty = torch.empty(0, dtype=torch.long)
    more = settings.images_per_source
    if (settings.when_all_flagged == DROP or settings.filter != MASK) and more == 1:
        sizes = torch.bincount(group)
        missing = sizes - torch.bincount(group[has_choice], minlength=len(sizes))
        return Refill(empty, has_choice, sizes, missing)
    is_allowed = table[:, 5] == 0 if settings.filter == MASK else torch.ones(len(table), dtype=torch.bool)
    entries = (is_allowed & (table[:, 4] == 0)).nonzero()[:, 0]
    spare = Spare(table[entries, 0], loss[entries], entries)
    if settings.when_all_flagged == CLASS_BALANCED:
        filled = balanced_refill(group, has_choice, spare, settings.max_per_source, more)
    else:
        own = torch.zeros(len(group)).scatter(0, table[choice, 0], loss[choice])
        filled = true_mix_refill(group, has_choice, spare, own, settings.max_per_source, more)
    return Refill(spare.index[filled.spare], filled.kept, filled.wanted, filled.missing)
