"""Chance isolation and its ceilings: simulation, grids, limits; the bound under differential privacy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsynth.attacks import dp_isolation_bound, isolation_baseline, isolation_ceiling
from fedsynth.attacks.isolation_baseline import unseen_ceiling
from fedsynth.evaluation import EvaluationError


@given(st.integers(1, 5_000), st.just(0.0) | st.floats(1e-200, 1))  # SciPy overflows at subnormal weights
def test_baseline_is_the_binomial_probability_of_exactly_one(n, weight):
    assert isolation_baseline(n, weight) == pytest.approx(stats.binom.pmf(1, n, weight), rel=1e-9, abs=1e-300)


def test_baseline_is_largest_at_one_over_n_where_it_is_about_37_percent():
    weights = np.linspace(0, 1, 100_001)
    for n in (2, 10, 1_000):
        assert weights[isolation_baseline(n, weights).argmax()] == pytest.approx(1 / n, abs=1e-5)
    assert isolation_baseline(100_000, 1e-5) == pytest.approx(math.exp(-1), abs=1e-5)
    assert isolation_ceiling(100, 1.0) == pytest.approx(0.99**99)


@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_ceiling_is_the_running_maximum_of_the_baseline(n):
    weights = np.linspace(0, 1, 4_201)  # holds 1/n
    expected = np.maximum.accumulate(isolation_baseline(n, weights))
    assert isolation_ceiling(n, weights) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "num_control"), [(1, 1), (5, 2), (30, 90)])
def test_unseen_ceiling_is_the_maximum_over_a_grid_of_weights(n, num_control):
    weights = np.linspace(0, 1, 200_001)[:-1]
    value = n * weights * (1 - weights) ** (n + num_control - 1)
    assert unseen_ceiling(n, num_control) == pytest.approx(value.max(), rel=1e-6)


@given(st.integers(1, 1_000), st.floats(0, 1), st.floats(0, 20), st.floats(0, 1), st.floats(0, 3))
def test_dp_bound_is_never_below_chance_and_grows_with_the_budget(n, weight, epsilon, delta, more):
    bound = dp_isolation_bound(n, weight, epsilon=epsilon, delta=delta)
    assert isolation_ceiling(n, weight) - 1e-12 <= bound <= 1
    assert bound <= dp_isolation_bound(n, weight, epsilon=epsilon + more, delta=delta)


def test_dp_bound_by_hand_and_at_its_ends():
    assert dp_isolation_bound(10, 0.001, epsilon=math.log(5), delta=0.002) == pytest.approx(
        10 * (0.005 + 0.002)
    )
    assert dp_isolation_bound(10, 0.0, epsilon=math.inf) == 0.0
    assert dp_isolation_bound(10, 1e-9, epsilon=1e4) == 1.0


@pytest.mark.parametrize(("n", "keep"), [(1, 0.1), (1, 0.4), (5, 0.05), (20, 0.03)])
def test_randomized_response_isolates_no_more_often_than_its_bound(n, keep):
    # Records are uniform on v values. The first is released as it is with probability keep, else as another value: ε-DP
    # with e^ε = keep (v - 1) / (1 - keep). The predicate "equals the released value" has weight 1/v.
    values, draws = 500, 20_000
    bound = dp_isolation_bound(n, 1 / values, epsilon=math.log(keep * (values - 1) / (1 - keep)))
    generator = np.random.default_rng(0)
    records = generator.integers(values, size=(draws, n))
    other = (records[:, 0] + generator.integers(1, values, size=draws)) % values
    released = np.where(generator.random(draws) < keep, records[:, 0], other)
    success = ((records == released[:, None]).sum(axis=1) == 1).mean()
    exact = keep * (1 - 1 / values) ** (n - 1) + (1 - keep) * isolation_baseline(
        max(1, n - 1), 1 / values
    ) * (n > 1)
    assert success == pytest.approx(exact, abs=5 * math.sqrt(exact / draws))
    assert isolation_ceiling(n, 1 / values) < exact <= bound < 1
    if n == 1:  # the bound is tight but for the records that are not released
        assert exact / (1 - keep) == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan, np.array([0.5, 1.5]), np.array([math.nan]), "0.1"])
def test_impossible_weights_are_refused(weight):
    for function in (isolation_baseline, isolation_ceiling):
        with pytest.raises(EvaluationError, match="weight must"):
            function(5, weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_train": 0}, "num_train"),
        ({"weight": 2.0}, "weight"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.5}, "delta"),
    ],
)
def test_impossible_budgets_are_refused(changes, message):
    arguments = {"num_train": 5, "weight": 0.1, "epsilon": 1.0, "delta": 0.0} | changes
    with pytest.raises(EvaluationError, match=message):
        dp_isolation_bound(arguments.pop("num_train"), arguments.pop("weight"), **arguments)
    with pytest.raises(EvaluationError, match="num_control"):
        unseen_ceiling(3, 0)
