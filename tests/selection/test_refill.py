"""Refills keep the mix of classes, use allowed candidates once, and never one source too often."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.selection.inputs import SelectionInputError
from fedsynth.selection.refill import Spare, balanced_refill, true_mix_refill

SEEDS = st.integers(0, 2**32)


def drawn(seed: int, num: int, max_spare: int) -> tuple[torch.Tensor, torch.Tensor, Spare, torch.Tensor]:
    """Sources of up to three groups; those with a choice have up to ``max_spare`` further candidates."""
    stream = torch.Generator().manual_seed(seed)
    group = torch.randint(0, 3, (num,), generator=stream)
    has_choice = torch.rand(num, generator=stream) < 0.6
    counts = torch.randint(0, max_spare + 1, (num,), generator=stream) * has_choice
    source = torch.arange(num).repeat_interleave(counts)
    source = source[torch.randperm(len(source), generator=stream)]
    loss = torch.randint(0, 5, (len(source),), generator=stream).float()
    own = torch.rand(num, generator=stream)
    return group, has_choice, Spare(source, loss, torch.arange(len(source))), own


@given(SEEDS, st.integers(1, 30), st.integers(0, 6), st.integers(1, 5))
def test_balanced_refill_has_as_many_images_of_a_class_as_sources_or_all_there_are(
    seed: int, num: int, max_spare: int, limit: int
) -> None:
    group, has_choice, spare, _ = drawn(seed, num, max_spare)
    filled = balanced_refill(group, has_choice, spare, limit)
    assert torch.equal(filled.kept, has_choice)
    assert len(filled.spare.unique()) == len(filled.spare)
    made = torch.bincount(spare.source[filled.spare], minlength=num) + has_choice
    assert int(made.max()) <= max(1, limit)
    spares = torch.bincount(spare.source, minlength=num)
    for g in range(int(group.max()) + 1):
        own = group == g
        possible = sum(min(limit, int(spares[i]) + 1) for i in range(num) if own[i] and has_choice[i])
        assert int(made[own].sum()) == min(int(own.sum()), possible)
        assert int(filled.missing[g]) == max(0, int(own.sum()) - possible)


def test_several_images_a_source_are_as_many_as_candidates_allow() -> None:
    group, has_choice = torch.tensor([0, 0, 1]), torch.tensor([True, True, True])
    spare = Spare(torch.tensor([0, 0, 2, 2]), torch.tensor([0.2, 0.1, 0.4, 0.3]), torch.arange(4))
    filled = balanced_refill(group, has_choice, spare, 3, images_per_source=2)
    assert filled.wanted.tolist() == [4, 2]
    assert filled.spare.tolist() == [1, 0, 3]  # both spares of source 0, for want of any of source 1
    mixed = true_mix_refill(group, has_choice, spare, torch.zeros(3), 2, images_per_source=2)
    assert mixed.wanted.tolist() == [
        3,
        1,
    ]  # at most two a source: three of four, and as many of two, rounded down


def test_seconds_come_before_thirds_and_small_losses_first() -> None:
    group = torch.zeros(5, dtype=torch.long)
    has_choice = torch.tensor([True, True, False, False, False])
    spare = Spare(torch.tensor([0, 0, 1, 1]), torch.tensor([0.1, 0.2, 0.9, 1.0]), torch.arange(4))
    # The second best of source 0 and of source 1, then the better of their third bests.
    assert balanced_refill(group, has_choice, spare, 9).spare.tolist() == [0, 2, 1]


def test_a_class_never_fills_the_places_of_another() -> None:
    group, has_choice = torch.tensor([0, 1]), torch.tensor([True, False])
    spare = Spare(torch.tensor([0, 0]), torch.zeros(2), torch.arange(2))
    filled = balanced_refill(group, has_choice, spare, 5)
    assert len(filled.spare) == 0
    assert filled.missing.tolist() == [0, 1]


@given(SEEDS, st.integers(1, 30), st.integers(0, 6), st.integers(1, 5))
def test_the_true_mix_is_kept_whichever_class_is_scarce(
    seed: int, num: int, max_spare: int, limit: int
) -> None:
    group, has_choice, spare, loss = drawn(seed, num, max_spare)
    filled = true_mix_refill(group, has_choice, spare, loss, limit)
    assert not bool((filled.kept & ~has_choice).any())
    assert int((torch.bincount(spare.source[filled.spare], minlength=num) + has_choice).max()) <= max(
        1, limit
    )
    made = torch.cat([group[filled.kept], group[spare.source[filled.spare]]])
    sizes = torch.bincount(group)
    counts = torch.bincount(made, minlength=len(sizes))
    full = balanced_refill(group, has_choice, spare, limit)
    possible = sizes - full.missing
    share = min(float(possible[g] / sizes[g]) for g in range(len(sizes)) if sizes[g])
    for g in range(len(sizes)):
        assert share * int(sizes[g]) - 1 < int(counts[g]) <= share * int(sizes[g]) + 1e-4


def test_the_true_mix_leaves_out_the_worst_choices() -> None:
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    has_choice = torch.tensor([True, True, True, True, True, False])
    none = Spare(torch.empty(0, dtype=torch.long), torch.empty(0), torch.empty(0, dtype=torch.long))
    loss = torch.tensor([0.4, 0.1, 0.3, 0.2, 9.0, 0.0])
    assert true_mix_refill(group, has_choice, none, loss, 1).kept.tolist() == [
        False, True, False, True, True, False,
    ]  # fmt: skip


def test_impossible_refills_are_refused() -> None:
    group, has_choice = torch.tensor([0]), torch.tensor([True])
    spare = Spare(torch.tensor([1]), torch.zeros(1), torch.zeros(1, dtype=torch.long))
    with pytest.raises(SelectionInputError, match="do not exist"):
        balanced_refill(group, has_choice, spare, 1)
    with pytest.raises(SelectionInputError, match="at least 1 image a source"):
        true_mix_refill(group, has_choice, spare, torch.zeros(1), 0)
