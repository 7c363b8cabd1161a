"""Summaries of repetitions against scipy and scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedsynth.attacks import SummaryAttack, paired_change, spread
from fedsynth.attacks.repetitions import auroc_rows
from fedsynth.evaluation import EvaluationError


def test_spread_uses_the_sample_standard_deviation_and_both_intervals():
    values = torch.tensor([1.0, 2.0, 4.0])
    result = spread(values)
    assert result.std == pytest.approx(math.sqrt(7 / 3))
    assert (result.mean, result.low, result.high) == pytest.approx((7 / 3, 1.05, 3.9))
    wanted = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem(values.double().numpy()))
    assert (result.mean_low, result.mean_high) == pytest.approx(wanted, rel=1e-9)


def test_one_repetition_has_no_spread():
    result = spread(torch.tensor([0.6]))
    assert (result.mean, result.low, result.high) == pytest.approx((0.6, 0.6, 0.6))
    assert all(math.isnan(value) for value in (result.std, result.mean_low, result.mean_high))


def test_more_repetitions_narrow_the_interval_of_the_mean_and_not_that_of_repetitions():
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    few, many = spread(values[:40]), spread(values)
    assert many.mean_high - many.mean_low < (few.mean_high - few.mean_low) / 5
    assert many.high - many.low > 3.5


@pytest.mark.parametrize("values", [torch.zeros(0), torch.zeros(2, 2)])
def test_a_spread_without_repetitions_is_refused(values):
    with pytest.raises(EvaluationError, match="at least one"):
        spread(values)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 30))
def test_auroc_of_rows_equals_scikit_learn_with_ties(seed, num_members, num_others):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(6, (3, num_members + num_others), generator=generator).double()
    is_member = torch.arange(num_members + num_others) < num_members
    wanted = [roc_auc_score(is_member.numpy(), row.numpy()) for row in scores]
    assert auroc_rows(scores, is_member).tolist() == pytest.approx(wanted, abs=1e-12)


def test_paired_change_counts_the_repetitions_that_were_reduced():
    private = SummaryAttack(auroc={"a": torch.tensor([0.5, 0.6, 0.7])}, score_gap={})
    exact = SummaryAttack(auroc={"a": torch.tensor([0.9, 0.6, 0.6])}, score_gap={})
    change = paired_change(private, exact, "a")
    assert (change.num_reduced, change.num_repetitions) == (1, 3)
    assert change.change.mean == pytest.approx(-0.1)


def test_unpaired_attacks_are_refused():
    first = SummaryAttack(auroc={"matched_filter": torch.zeros(3)}, score_gap={})
    second = SummaryAttack(auroc={"matched_filter": torch.zeros(4)}, score_gap={})
    with pytest.raises(EvaluationError, match="equally many repetitions"):
        paired_change(first, second)
    with pytest.raises(EvaluationError, match="score must be one that both attacks have, got 'informed'"):
        paired_change(first, first, "informed")


@pytest.mark.parametrize("values", [[1.0], None, 3.0])
def test_only_a_tensor_has_a_spread(values):
    with pytest.raises(EvaluationError, match="tensor or a numpy array"):
        spread(values)
