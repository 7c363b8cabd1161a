"""The ranking loss is torch's binary cross-entropy with soft targets; the best candidate is brute force's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.selection.inputs import SelectionInputError
from fedsynth.selection.ranking import NONE, best_allowed, penalized_choice, predicate_loss


def probabilities(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_is_the_mean_over_classes_of_the_formula() -> None:
    source, candidate = probabilities(3, 4), probabilities(3, 5, 4, seed=1)
    loss = predicate_loss(source, candidate)
    t, p = source[:, None].double(), candidate.double()
    expected = -(t * p.log() + (1 - t) * (1 - p).log()).mean(2)
    torch.testing.assert_close(loss.double(), expected, atol=1e-6, rtol=1e-5)


@given(st.integers(0, 2**32))
def test_no_candidate_is_better_than_one_with_the_predicates_of_its_source(seed: int) -> None:
    source = probabilities(2, 3, seed=seed)
    others = torch.cat([source[:, None], probabilities(2, 6, 3, seed=seed + 1)], 1)
    loss = predicate_loss(source, others)
    assert bool((loss[:, 1:] >= loss[:, :1] - 1e-6).all())
    entropy = -(torch.xlogy(source, source) + torch.xlogy(1 - source, 1 - source)).mean(1)
    torch.testing.assert_close(loss[:, 0], entropy, atol=1e-5, rtol=1e-4)


def test_certain_predictions_stay_finite() -> None:
    loss = predicate_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    assert loss.tolist() == [[100.0, 0.0]]


def test_bad_predictions_are_refused() -> None:
    with pytest.raises(SelectionInputError, match="candidate must be probabilities"):
        predicate_loss(probabilities(2, 3), torch.full((2, 4, 3), torch.nan))
    with pytest.raises(SelectionInputError, match=r"\[n, b, k\]"):
        predicate_loss(probabilities(2, 3), probabilities(2, 4, 2))


def test_the_first_of_equal_candidates_is_taken_and_none_where_none_is_allowed() -> None:
    loss = torch.tensor([[1.0, 0.5, 0.5], [1.0, 0.5, 0.5], [0.1, 0.2, 0.3]])
    allowed = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    assert best_allowed(loss, allowed).tolist() == [1, 2, NONE]


def test_losses_that_cannot_be_ranked_are_refused() -> None:
    allowed = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(SelectionInputError, match="1 of 2 ranking losses are NaN"):
        best_allowed(torch.tensor([[torch.nan, 1.0]]), allowed)
    with pytest.raises(SelectionInputError, match="mask must be bool"):
        best_allowed(torch.rand(1, 3), allowed)


def test_the_released_code_emits_flagged_candidates_where_the_mask_emits_none() -> None:
    loss = torch.tensor([[0.1, 1.2], [0.1, 1.0], [0.3, 0.2]])
    is_flagged = torch.tensor([[True, False], [True, False], [True, True]])
    # 0.1 + 1 < 1.2 wins although flagged; 1.1 > 1.0 does not; all flagged: the best wins anyway.
    assert penalized_choice(loss, is_flagged).tolist() == [0, 1, 1]
    assert best_allowed(loss, ~is_flagged).tolist() == [1, 1, NONE]
