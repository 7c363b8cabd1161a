"""Pairs of one person and of two, against enumeration; views of an image; the order of batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_identities import people
from torch import Tensor

from fedsynth.stages.reidentifier.augmentation import random_views
from fedsynth.stages.reidentifier.datamodule import PairOrder
from fedsynth.stages.reidentifier.pairs import (
    PairTable,
    draw_negatives,
    image_content,
    pair_table,
    same_patient_pairs,
)

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=14)


def table_of(rows: list[tuple[int, int, int]]) -> PairTable:
    """Images given by (patient, content, match)."""
    patient, content, match = torch.tensor(rows).T
    return PairTable(torch.zeros(len(rows), 1, 2, 2, dtype=torch.uint8), patient, content, match, True)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(ROWS)
def test_pairs_of_one_person_are_all_there_are(rows: list[tuple[int, int, int]]) -> None:
    wanted = {
        (i, j)
        for i, j in combinations(range(len(rows)), 2)
        if rows[i][0] == rows[j][0] and rows[i][1] != rows[j][1]
    }
    found = same_patient_pairs(table_of(rows), max_per_patient=None, generator=stream())
    assert sorted(map(tuple, found.tolist())) == sorted(wanted)


@given(ROWS, st.integers(1, 3))
def test_capped_pairs_are_a_subset_of_exactly_the_capped_number(
    rows: list[tuple[int, int, int]], cap: int
) -> None:
    table = table_of(rows)
    everything = same_patient_pairs(table, max_per_patient=None, generator=stream())
    capped = same_patient_pairs(table, max_per_patient=cap, generator=stream())
    assert set(map(tuple, capped.tolist())) <= set(map(tuple, everything.tolist()))
    assert len(set(map(tuple, capped.tolist()))) == len(capped)
    by_patient = table.patient[everything[:, 0]].bincount(minlength=5).clamp(max=cap)
    assert torch.equal(table.patient[capped[:, 0]].bincount(minlength=5), by_patient)


@given(ROWS, st.booleans())
def test_negatives_are_of_other_persons_and_of_the_class_where_it_has_any(
    rows: list[tuple[int, int, int]], matched: bool
) -> None:
    table, anchor = table_of(rows), torch.arange(len(rows))
    drawn = draw_negatives(table, anchor, matched=matched, generator=stream())
    unmatched = 0
    for row, partner in enumerate(drawn.partner.tolist()):
        allowed = {i for i, one in enumerate(rows) if one[0] != rows[row][0] and one[1] != rows[row][1]}
        alike = {i for i in allowed if rows[i][2] == rows[row][2]}
        unmatched += matched and bool(allowed) and not alike
        assert partner in ((alike or allowed) if matched else allowed) if allowed else partner == -1
    assert drawn.num_unmatched == unmatched


def test_negatives_are_uniform_over_those_allowed() -> None:
    table = table_of([(0, 0, 0), (0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 0), (4, 5, 1)])
    drawn = draw_negatives(table, torch.zeros(6000, dtype=torch.int64), matched=True, generator=stream())
    counts = drawn.partner.bincount(minlength=6)
    # 2000 each with a standard deviation of √(6000 · 2/9) = 37: six of them are 220.
    assert counts[[0, 1, 5]].tolist() == [0, 0, 0]
    assert bool(((counts[2:5] - 2000).abs() < 220).all())


def test_same_pixels_have_the_same_content() -> None:
    image = people(range(3)).image
    content = image_content(torch.cat([image, image[4:5]]))
    assert content.tolist() == [*range(len(image)), 4]


def test_sets_of_labels_match_as_a_whole() -> None:
    images = replace(people(range(4), per_patient=1, multilabel=True), label=torch.tensor(
        [[1, 0], [1, 1], [0, 1], [1, 1]], dtype=torch.uint8
    ))  # fmt: skip
    match = pair_table(images).match
    assert match[1] == match[3]
    assert len(match.unique()) == 3


def order(**changes: object) -> PairOrder:
    table = pair_table(people(range(10)))
    pairs = same_patient_pairs(table, max_per_patient=None, generator=stream())
    options = {"batch_size": 8, "patient_share": 0.5, "num_steps": 5, "negatives": "random", "seed": 3}
    return PairOrder(table, pairs, **{**options, **changes})  # type: ignore[arg-type]


def batches(one: PairOrder, epoch: int) -> list[Tensor]:
    one.set_epoch(epoch)
    return list(one)


def test_batches_hold_the_asked_share_of_patient_pairs_and_depend_on_the_epoch_only() -> None:
    first = batches(order(), 1)
    assert len(first) == len(order()) == 5
    patient = order().table.patient
    for rows in first:
        is_view = rows[:, 0] == rows[:, 1]
        assert int(is_view.sum()) == 4
        assert torch.equal(patient[rows[:, 0]], patient[rows[:, 1]])
        assert bool((patient[rows[:, 0]] != patient[rows[:, 2]]).all())
    assert all(torch.equal(a, b) for a, b in zip(first, batches(order(), 1), strict=True))
    assert not torch.equal(torch.cat(first), torch.cat(batches(order(), 2)))


def test_an_epoch_without_a_number_of_steps_sees_every_pair() -> None:
    one = order(num_steps=None, patient_share=1.0)
    rows = torch.cat(batches(one, 0))[:, :2].sort(1).values
    # 30 pairs in batches of 8: the last is filled up from a second round.
    assert len(one) == 4
    assert {tuple(pair) for pair in rows.tolist()} == {tuple(pair) for pair in one.pairs.tolist()}


def test_ranks_share_the_patient_pairs_of_an_epoch() -> None:
    parts = [
        order(rank=rank, world_size=2, num_steps=None, patient_share=1.0, batch_size=4) for rank in (0, 1)
    ]
    rows = torch.cat([torch.cat(batches(part, 0)) for part in parts])[:, :2].sort(1).values
    assert len(rows) == 32
    assert {tuple(pair) for pair in rows.tolist()} == {tuple(pair) for pair in parts[0].pairs.tolist()}


def test_views_of_strength_zero_are_the_images_and_others_stay_within_the_grey_levels() -> None:
    pixels = torch.rand(20, 1, 16, 16, generator=stream())
    assert torch.equal(random_views(pixels, 0.0, stream()), pixels)
    views = random_views(pixels, 3.0, stream(1))
    assert views.shape == pixels.shape
    assert float(views.min()) >= 0
    assert float(views.max()) <= 1
    assert torch.equal(views, random_views(pixels, 3.0, stream(1)))


def test_views_move_an_image_by_no_more_than_the_stated_share() -> None:
    # A bright dot in the middle; at strength 1 it moves by at most 6 % of the side: rotation and zoom keep the middle.
    size = 64
    dots = torch.zeros(200, 1, size, size)
    dots[:, :, 30:34, 30:34] = 1.0
    weight = (random_views(dots, 1.0, stream()) - 0.5).clamp(min=0)[:, 0]
    axis = torch.arange(size) + 0.5
    center = torch.stack([(weight.sum(dim) * axis).sum(1) / weight.sum((1, 2)) for dim in (1, 2)], 1)
    moved = (center - size / 2).abs()
    assert float(moved.max()) <= 0.06 * size + 0.5
    assert float(moved.max()) > 0.04 * size


@pytest.mark.parametrize("matched", [False, True])
def test_only_person_has_no_negative(matched: bool) -> None:
    table = table_of([(0, 0, 0), (0, 1, 0)])
    drawn = draw_negatives(table, torch.tensor([0, 1]), matched=matched, generator=stream())
    assert drawn.partner.tolist() == [-1, -1]
    assert drawn.num_unmatched == 0
