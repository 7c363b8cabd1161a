"""The filter's verdicts are those of brute force, and no choice under the mask is ever flagged."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.selection.identity_filter import (
    exceedance_threshold,
    flagged,
    largest_probability,
    row_thresholds,
    source_probability,
)
from fedsynth.selection.inputs import SelectionInputError
from fedsynth.selection.ranking import NONE, best_allowed


def likeness(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(first - second).square().sum(1))


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 6), st.floats(0, 0.999))
def test_the_mask_never_lets_a_flagged_candidate_be_chosen(
    seed: int, rows: int, width: int, threshold: float
) -> None:
    stream = torch.Generator().manual_seed(seed)
    # Few different values, so that probabilities equal to the threshold and equal losses occur.
    probability = torch.randint(0, 5, (rows, width), generator=stream) / 4
    loss = torch.randint(0, 3, (rows, width), generator=stream).float()
    limit = round(threshold * 4) / 4 if threshold < 0.8 else threshold
    verdict = flagged(probability, limit)
    chosen = best_allowed(loss, ~verdict)
    for row in range(rows):
        passing = [c for c in range(width) if float(probability[row, c]) <= limit]
        if not passing:
            assert int(chosen[row]) == NONE
            continue
        assert int(chosen[row]) == min(passing, key=lambda c: (float(loss[row, c]), c))


def test_a_threshold_that_float32_cannot_hold_is_compared_exactly() -> None:
    just_above = torch.tensor([[0.1]])  # 0.1 in float32 is 0.100000001…
    assert bool(flagged(just_above, 0.1).all())
    assert not bool(flagged(just_above, float(just_above)).any())


def test_every_source_has_its_own_threshold() -> None:
    verdict = flagged(torch.tensor([[0.3, 0.6], [0.3, 0.6]]), torch.tensor([0.2, 0.5]))
    assert verdict.tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize("probability", [math.nan, 1.5, -0.1])
def test_values_that_are_no_probabilities_do_not_pass_as_unflagged(probability: float) -> None:
    with pytest.raises(SelectionInputError, match="1 of 2 values"):
        flagged(torch.tensor([[probability, 0.5]]), 0.5)


@pytest.mark.parametrize("threshold", [1.0, 1.2, math.nan])
def test_a_threshold_that_flags_nothing_is_refused(threshold: float) -> None:
    with pytest.raises(SelectionInputError, match="below 1"):
        flagged(torch.tensor([[0.5]]), threshold)


def test_thresholds_of_another_number_of_sources_are_refused() -> None:
    with pytest.raises(SelectionInputError, match="3 sources"):
        flagged(torch.full((3, 2), 0.5), torch.tensor([0.5, 0.5]))


def test_probabilities_of_sources_are_those_pair_by_pair() -> None:
    stream = torch.Generator().manual_seed(0)
    source, candidate = torch.rand(4, 3, generator=stream), torch.rand(4, 5, 3, generator=stream)
    found = source_probability(likeness, source, candidate)
    for row in range(4):
        for number in range(5):
            one = likeness(source[row : row + 1], candidate[row, number : number + 1])
            torch.testing.assert_close(found[row, number], one[0])


@pytest.mark.parametrize("pairs_at_once", [1, 3, 7, 20, 1000])
def test_the_largest_probability_is_that_of_the_whole_matrix_in_blocks_of_any_size(
    pairs_at_once: int,
) -> None:
    stream = torch.Generator().manual_seed(1)
    query, train = torch.rand(6, 3, generator=stream), torch.rand(10, 3, generator=stream)
    whole = torch.exp(-torch.cdist(query, train).square()).amax(1)
    found = largest_probability(likeness, query, train, pairs_at_once=pairs_at_once)
    torch.testing.assert_close(found, whole)


def test_embeddings_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(SelectionInputError, match="one length"):
        largest_probability(likeness, torch.rand(2, 3), torch.rand(2, 4))
    with pytest.raises(SelectionInputError, match="one length"):
        largest_probability(likeness, torch.rand(2, 3), torch.rand(0, 3))
    with pytest.raises(SelectionInputError, match=r"\[n, b, e\]"):
        source_probability(likeness, torch.rand(2, 3), torch.rand(3, 2, 3))


@given(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]), min_size=1, max_size=40), st.floats(0, 0.99))
def test_the_threshold_of_held_out_images_is_the_smallest_that_few_enough_exceed(
    values: list[float], share: float
) -> None:
    held_out = torch.tensor(values, dtype=torch.float64)
    threshold = exceedance_threshold(held_out, share)
    exceeding = sum(value > threshold for value in values)
    assert exceeding <= share * len(values) + 1e-6
    smaller = [value for value in values if value < threshold]
    if smaller:
        assert sum(value > max(smaller) for value in values) > share * len(values) - 1e-6


def test_a_tenth_of_ten_images_is_one() -> None:
    assert exceedance_threshold(torch.arange(10) / 10, 0.1) == pytest.approx(0.8)


def test_a_saturated_network_has_no_threshold() -> None:
    with pytest.raises(SelectionInputError, match="2 of 3 held-out images have probability 1"):
        exceedance_threshold(torch.tensor([1.0, 1.0, 0.2]), 0.1)
    with pytest.raises(SelectionInputError, match="share"):
        exceedance_threshold(torch.rand(3), 1.0)


def test_an_image_with_several_labels_has_the_strictest_threshold() -> None:
    targets = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 0]])
    assert row_thresholds([0.5, 0.4, 0.7], targets).tolist() == [0.5, 0.4, 0.4]
    with pytest.raises(SelectionInputError, match="one threshold a class"):
        row_thresholds([0.5], targets)
