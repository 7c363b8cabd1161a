"""Distinct items among uniform draws: exact Stirling numbers, golden values of the paper's sizes, coverage."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from fedsynth.evaluation import (
    EvaluationError,
    distinct_distribution,
    distinct_moments,
    reachable_bounds,
    reachable_records,
)

#: ChestX-ray14's training records and test images, as Trichotomy counts them.
TRAIN, TEST = 67_309, 8_735


@cache
def _stirling(n: int, k: int) -> int:
    """S2(n, k) by its recurrence, in integers."""
    if n == k:
        return 1
    return 0 if k == 0 or k > n else k * _stirling(n - 1, k) + _stirling(n - 1, k - 1)


def _exact(n: int, s: int) -> list[Fraction]:
    """P(K = k | s, n) as fractions."""
    ways = [_stirling(n, k) * math.perm(s, k) for k in range(min(n, s) + 1)]
    return [Fraction(count, s**n) for count in ways]


SMALL = [(n, s) for n in range(1, 13) for s in (1, 2, 3, 5, 8, 13)]


@pytest.mark.parametrize(("n", "s"), SMALL)
def test_distribution_is_that_of_stirling_numbers(n, s):
    exact = _exact(n, s)
    assert sum(exact) == 1
    assert distinct_distribution(n, s) == pytest.approx([float(p) for p in exact], rel=1e-13)


@pytest.mark.parametrize(("n", "s"), SMALL)
def test_moments_are_those_of_the_distribution(n, s):
    exact = _exact(n, s)
    mean = sum(k * p for k, p in enumerate(exact))
    variance = sum((k - mean) ** 2 * p for k, p in enumerate(exact))
    found = distinct_moments(n, s)
    assert found[0] == pytest.approx(float(mean), rel=1e-13)
    assert found[1] ** 2 == pytest.approx(float(variance), rel=1e-9, abs=1e-13)


def test_moments_do_not_cancel_for_many_items():
    # n draws of s >> n²: repeats are Poisson with mean and variance n (n - 1) / 2 s, to relative order n / s.
    n, s = 100, 10**9
    mean, std = distinct_moments(n, s)
    assert n - mean == pytest.approx(n * (n - 1) / (2 * s), rel=1e-6)
    assert std**2 == pytest.approx(n * (n - 1) / (2 * s), rel=1e-4)


def test_a_truncated_distribution_is_the_front_of_the_whole():
    whole = distinct_distribution(60, 40)
    assert np.array_equal(distinct_distribution(60, 40, 25), whole[:26])


@pytest.mark.parametrize(("n", "train"), [(2, 5), (5, 4), (6, 9), (9, 20), (12, 12)])
def test_estimate_is_the_argmax_of_the_exact_likelihood(n, train):
    for k in range(1, min(n, train) + 1):
        likelihood = {s: _exact(n, s)[k] for s in range(k, train + 1)}
        best = reachable_records(k, n, train)
        assert likelihood[best] == max(likelihood.values())
        assert sum(value == likelihood[best] for value in likelihood.values()) == 1


@settings(deadline=None)
@given(st.data())
def test_estimate_is_the_argmax_of_the_log_gamma_form(data):
    train = data.draw(st.integers(2, 5_000))
    n = data.draw(st.integers(2, 3_000))
    k = data.draw(st.integers(1, min(n, train)))
    s = np.arange(k, train + 1, dtype=np.float64)
    likelihood = gammaln(s + 1) - gammaln(s - k + 1) - n * np.log(s)
    # Terms of up to n ln s < 3e4 are rounded at 4e-12 each.
    assert likelihood[reachable_records(k, n, train) - k] >= likelihood.max() - 1e-10


@given(st.integers(2, 400), st.integers(1, 400))
def test_estimate_grows_with_distinct_records_and_stays_in_range(n, train):
    found = [reachable_records(k, n, train) for k in range(1, min(n, train) + 1)]
    assert found == sorted(found)
    assert all(k <= s <= train for k, s in enumerate(found, start=1))


def test_no_repeated_retrieval_gives_the_ceiling():
    assert reachable_records(7, 7, 1_000_000) == 1_000_000
    assert reachable_records(1, 1, 9) == 9


@pytest.mark.parametrize(
    ("share", "distinct"), [(0.3, 7091), (0.5, 7694), (0.633, 7898), (1.0, 8192)], ids=str
)
def test_golden_values_at_the_papers_sizes(share, distinct):
    assert round(distinct_moments(TEST, round(share * TRAIN))[0]) == distinct
    # One distinct record more or less moves the estimate by .0008 at 63 % and by .002 at the ceiling.
    assert reachable_records(distinct, TEST, TRAIN) / TRAIN == pytest.approx(share, abs=5e-4)


def test_golden_ceiling_from_8193_distinct_records_on():
    assert reachable_records(8192, TEST, TRAIN) < TRAIN
    assert {reachable_records(k, TEST, TRAIN) for k in (8193, 8194, 8500, TEST)} == {TRAIN}
    assert pytest.approx(0.938, abs=5e-4) == 8193 / TEST


def test_golden_spread_of_the_estimate_at_the_real_test_value():
    probability = distinct_distribution(TEST, round(0.633 * TRAIN))
    likely = np.flatnonzero(probability > 1e-12)
    estimate = np.array([reachable_records(int(k), TEST, TRAIN) / TRAIN for k in likely])
    mean = (probability[likely] * estimate).sum()
    spread = math.sqrt((probability[likely] * (estimate - mean) ** 2).sum())
    assert mean == pytest.approx(0.633, abs=0.001)
    assert spread == pytest.approx(0.021, abs=0.001)  # the specification's value, rounded or simulated


def _tails(k: int, n: int, s: int) -> tuple[float, float]:
    exact = _exact(n, s)
    return float(sum(exact[: k + 1])), float(sum(exact[k:]))


@pytest.mark.parametrize(("n", "train"), [(6, 12), (9, 9), (12, 30)])
@pytest.mark.parametrize("tail", [0.05, 0.2])
def test_bounds_are_the_first_and_last_number_not_rejected(n, train, tail):
    for k in range(1, min(n, train) + 1):
        high = [s for s in range(k, train + 1) if _tails(k, n, s)[0] >= tail]
        low = [s for s in range(k, train + 1) if _tails(k, n, s)[1] >= tail]
        assert reachable_bounds(k, n, train, tail=tail) == (min(low, default=None), max(high))


def test_bounds_cover_the_truth_as_often_as_promised():
    # Each side is missed with probability below the tail, for every number of reachable records.
    n, train = 60, 200
    bounds = {k: reachable_bounds(k, n, train) for k in range(20, n + 1)}
    for s in (40, 90, 150):
        probability = distinct_distribution(n, s)
        missed_below = sum(probability[k] for k, (_, high) in bounds.items() if k <= s and high < s)
        missed_above = sum(
            probability[k] for k, (low, _) in bounds.items() if k <= s and (low is None or low > s)
        )
        assert missed_below + missed_above > 0.01
        assert max(missed_below, missed_above) < 0.05


@pytest.mark.parametrize("k", [220, 300, 440])
def test_normal_bounds_are_close_to_exact_ones(k):
    exact, normal = (reachable_bounds(k, 500, 3_000, bounds=kind) for kind in ("exact", "normal"))
    # The intervals are 5 to 30 % wide.
    assert normal == pytest.approx(exact, rel=0.005)


def test_more_distinct_records_than_any_number_allows_have_no_lower_bound():
    # 40 draws from at most 40 items repeat some with certainty, but for 40!/40^40.
    for kind in ("exact", "normal"):
        assert reachable_bounds(40, 40, 40, bounds=kind) == (None, 40)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 5), "num_distinct must be an integer >= 1, got 0"),
        ((6, 5, 9), "at most the 5 queries and the 9 training records, got 6"),
        ((6, 9, 5), "at most the 9 queries and the 5 training records, got 6"),
        ((1, 2.0, 5), "num_queries must be an integer"),
        ((1, 2, True), "num_train must be an integer"),
    ],
)
def test_impossible_counts_are_refused(arguments, message):
    for function in (reachable_records, reachable_bounds):
        with pytest.raises(EvaluationError, match=message):
            function(*arguments)


@pytest.mark.parametrize("tail", [0.0, 0.5, math.nan, "0.05"])
def test_a_tail_that_bounds_nothing_is_refused(tail):
    with pytest.raises(EvaluationError, match=r"tail must be a number in \(0, 0.5\)"):
        reachable_bounds(2, 3, 4, tail=tail)


def test_unknown_bounds_and_negative_sizes_are_refused():
    with pytest.raises(EvaluationError, match="bounds must be 'exact' or 'normal', got 'wald'"):
        reachable_bounds(2, 3, 4, bounds="wald")
    for function in (distinct_moments, distinct_distribution):
        with pytest.raises(EvaluationError, match="num_reachable must be an integer >= 1, got 0"):
            function(3, 0)
    with pytest.raises(EvaluationError, match="max_distinct must be an integer >= 0, got -1"):
        distinct_distribution(3, 3, -1)
