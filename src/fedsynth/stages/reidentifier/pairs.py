"""Which images make pairs of one person and of two.

Pairs of one person are all pairs of different images of a patient; images with the same pixels are no pair, since
nothing is to be recognized in them, and never a pair of two persons either, since they are most likely one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.stages.image_set import ImageSet


@dataclass(frozen=True, eq=False)
class PairTable:
    """Images with all that decides which of them may be paired, as equal-length vectors of whole numbers.

    Attributes:
        image: Grey levels.
        patient: Person of each image; the row itself where persons are not known.
        content: Equal for images with the same pixels.
        match: Equal for images of the same class, or of the same set of labels.
        has_patients: Whether persons are known.
    """

    image: UInt8[Tensor, "n 1 h w"]
    patient: Int64[Tensor, " n"]
    content: Int64[Tensor, " n"]
    match: Int64[Tensor, " n"]
    has_patients: bool


def pair_table(images: ImageSet, *, use_patients: bool = True) -> PairTable:
    """The table of a split.

    Args:
        images: The split.
        use_patients: False forgets the persons: every image is one of its own.
    """
    known = use_patients and images.patient is not None
    rows = torch.arange(len(images))
    match = images.label if images.label.ndim == 1 else images.label.unique(dim=0, return_inverse=True)[1]
    patient = images.patient if known and images.patient is not None else rows
    return PairTable(images.image, patient.long(), image_content(images.image), match.long(), known)


def image_content(image: UInt8[Tensor, "n c h w"]) -> Int64[Tensor, " n"]:
    """The row of the first image with the same pixels."""
    first: dict[bytes, int] = {}
    rows = [
        first.setdefault(hashlib.blake2b(one.numpy().tobytes(), digest_size=16).digest(), row)
        for row, one in enumerate(image.contiguous())
    ]
    return torch.tensor(rows, dtype=torch.int64)


def same_patient_pairs(
    table: PairTable, *, max_per_patient: int | None, generator: torch.Generator
) -> Int64[Tensor, "pair 2"]:
    """All pairs of rows of one patient with different pixels, first row < second row, by ascending patient.

    Args:
        table: Of the split.
        max_per_patient: Of a patient with more pairs this many are drawn without replacement; None keeps all.
        generator: Of these draws.
    """
    order = table.patient.argsort(stable=True)
    _, counts = table.patient[order].unique_consecutive(return_counts=True)
    parts = []
    for rows in order.split(counts.tolist()):
        pairs = torch.combinations(rows, 2) if len(rows) > 1 else rows.new_empty(0, 2)
        pairs = pairs[table.content[pairs[:, 0]] != table.content[pairs[:, 1]]]
        if max_per_patient is not None and len(pairs) > max_per_patient:
            chosen = torch.randperm(len(pairs), generator=generator)[:max_per_patient]
            pairs = pairs[chosen.sort().values]
        parts.append(pairs)
    return torch.cat(parts) if parts else torch.empty(0, 2, dtype=torch.int64)


class NegativeDraw(NamedTuple):
    """Partners of other persons, -1 where there is none at all; how many are not of the same class as asked."""

    partner: Int64[Tensor, " n"]
    num_unmatched: int


def draw_negatives(
    table: PairTable, anchor: Int64[Tensor, " n"], *, matched: bool, generator: torch.Generator
) -> NegativeDraw:
    """For each anchor an image of another person with other pixels, uniformly at random.

    Args:
        table: Of the split.
        anchor: Rows.
        matched: Among those of the same class or set of labels. An anchor without any takes one of another class
            and is counted: a class of one patient has no other choice.
        generator: CPU generator.
    """
    if not matched:
        return NegativeDraw(_partners(table, anchor, torch.zeros_like(table.match), generator), 0)
    partner = _partners(table, anchor, table.match, generator)
    lonely = partner < 0
    if lonely.any():
        everyone = torch.zeros_like(table.match)
        partner[lonely] = _partners(table, anchor[lonely], everyone, generator)
    return NegativeDraw(partner, int((lonely & (partner >= 0)).sum()))


def _partners(
    table: PairTable, anchor: Int64[Tensor, " n"], group: Int64[Tensor, " row"], generator: torch.Generator
) -> Int64[Tensor, " n"]:
    """An allowed partner of the anchor's group; -1 if the group has none.

    By rejection, which is uniform over the allowed; what a few rounds leave is drawn from a list of them.
    """
    members, order = group.sort(stable=True)
    numbers, counts = members.unique_consecutive(return_counts=True)
    which = torch.searchsorted(numbers, group[anchor])
    start, size = (counts.cumsum(0) - counts)[which], counts[which]
    partner = torch.full_like(anchor, -1)
    for _ in range(8):
        open_ = partner < 0
        if not open_.any():
            return partner
        place = (torch.rand(len(anchor), generator=generator, dtype=torch.float64) * size).long()
        drawn = order[start + place]
        partner = torch.where(open_ & _may_pair(table, anchor, drawn), drawn, partner)
    for position in (partner < 0).nonzero().flatten().tolist():
        row = anchor[position]
        among = order[start[position] : start[position] + size[position]]
        allowed = among[_may_pair(table, row.expand(len(among)), among)]
        if len(allowed):
            partner[position] = allowed[torch.randint(len(allowed), (), generator=generator)]
    return partner


def _may_pair(
    table: PairTable, first: Int64[Tensor, " n"], second: Int64[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    differs = table.patient[first] != table.patient[second]
    return differs & (table.content[first] != table.content[second])


def check_patients(tables: Mapping[str, PairTable], stage: str) -> None:
    """Refuse persons that are in two splits: recognition of persons seen in training would be measured.

    Raises:
        DataError: Naming the splits, how many persons they share, and some of them.
    """
    names = [name for name, table in tables.items() if table.has_patients]
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            shared = set(tables[first].patient.tolist()) & set(tables[second].patient.tolist())
            if shared:
                raise DataError(
                    f"stages.{stage}: {len(shared)} patients are in both {first} and {second} "
                    f"(numbers {', '.join(map(str, sorted(shared)[:5]))}). Split the images by patient."
                )


def require_pairs(pairs: Int64[Tensor, "pair 2"], table: PairTable, split: str, stage: str) -> None:
    """Refuse a split in which no patient has two different images.

    Raises:
        DataError: With the number of images and patients, and the option that needs no patients.
    """
    if len(pairs):
        return
    persons = f"{len(table.patient.unique())} patients" if table.has_patients else "no patient numbers"
    raise DataError(
        f"stages.{stage}: the {split} images hold no pair of one person ({len(table.patient)} images, {persons}, one "
        "different image each). Use data with several images a patient, or set "
        "reidentification.pairs=augmentation, which takes two views of one image for a pair."
    )
