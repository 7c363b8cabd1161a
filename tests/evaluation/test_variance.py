"""Variance components: closed forms, an independent ANOVA, unbiasedness, refusals."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from fedsynth.evaluation.variance import DesignError, variance_components


def by_name(values, factors, **options):
    return {item.name: item for item in variance_components(values, factors, **options)}


def test_two_factors_by_hand():
    # Rows 0 and 4, columns ±1, no interaction but for one cell: y = [[-1, 1], [3, 5 + 4e]] with e = 1.
    values = np.array([[-1.0, 1.0], [3.0, 9.0]])
    found = by_name(values, ("a", "b"), max_order=1)
    # Means: rows 0, 6; columns 1, 5; grand 3. SS_a = 2 (9 + 9) = 36, SS_b = 2 (4 + 4) = 16, total 56, rest 4.
    assert (found["a"].sum_of_squares, found["b"].sum_of_squares) == (36.0, 16.0)
    assert found["residual"].variance == pytest.approx(4.0)
    assert found["a"].variance == pytest.approx((36 - 4) / 2)
    assert found["b"].variance == pytest.approx((16 - 4) / 2)
    assert found["a"].share == pytest.approx(16 / 26)


def test_a_pure_main_effect_has_the_sample_variance_of_its_levels_and_everything_else_is_zero():
    levels = np.array([0.2, 0.9, 0.4])
    values = np.broadcast_to(levels[:, None, None], (3, 2, 4))
    found = by_name(values, ("a", "b", "c"))
    assert found["a"].variance == pytest.approx(levels.var(ddof=1), rel=1e-9)
    assert found["a"].share == pytest.approx(1.0)
    assert all(item.variance == pytest.approx(0, abs=1e-12) for name, item in found.items() if name != "a")


def test_sums_of_squares_equal_those_of_statsmodels():
    rng = np.random.default_rng(0)
    shape = (3, 2, 2, 3)
    values = rng.normal(size=shape) + rng.normal(size=(3, 1, 1, 1)) + rng.normal(size=(1, 2, 2, 1))
    index = np.indices(shape).reshape(4, -1)
    frame = pd.DataFrame(dict(zip("abcd", index, strict=True), y=values.reshape(-1)))
    table = anova_lm(ols("y ~ (C(a) + C(b) + C(c) + C(d)) ** 2", frame).fit(), typ=2)
    for name, item in by_name(values, tuple("abcd")).items():
        row = "Residual" if name == "residual" else ":".join(f"C({one})" for one in item.factors)
        assert item.sum_of_squares == pytest.approx(table.loc[row, "sum_sq"], rel=1e-9), name
        assert item.degrees_of_freedom == table.loc[row, "df"], name


def test_estimates_are_unbiased():
    rng = np.random.default_rng(1)
    true = {"a": 4.0, "b": 1.0, "a × b": 0.5, "residual": 0.25}
    draws: dict[str, list[float]] = {}
    for _ in range(3000):
        values = (
            rng.normal(0, 2.0, (3, 1, 1))
            + rng.normal(0, 1.0, (1, 4, 1))
            + rng.normal(0, math.sqrt(0.5), (3, 4, 1))
            + rng.normal(0, 0.5, (3, 4, 2))
        )
        for name, item in by_name(values, ("a", "b", "c")).items():
            draws.setdefault(name, []).append(item.variance)
    for name, samples in draws.items():
        error = np.std(samples) / math.sqrt(len(samples))
        assert abs(np.mean(samples) - true.get(name, 0.0)) < 4 * error, name


@given(arrays(np.float64, (2, 3, 2), elements=st.floats(-100, 100)))
def test_sums_of_squares_and_degrees_of_freedom_add_up_to_the_total(values):
    found = variance_components(values, ("a", "b", "c"))
    total = ((values - values.mean()) ** 2).sum()
    assert sum(item.sum_of_squares for item in found) == pytest.approx(total, rel=1e-9, abs=1e-6)
    assert sum(item.degrees_of_freedom for item in found) == values.size - 1
    shares = [item.share for item in found]
    assert sum(shares) == pytest.approx(1.0) or all(map(math.isnan, shares))


@given(st.floats(0.1, 10), st.floats(-50, 50))
def test_components_do_not_move_with_the_origin_and_scale_with_the_square_of_the_unit(scale, shift):
    values = np.random.default_rng(2).normal(size=(3, 2, 2))
    before, after = (variance_components(v, ("a", "b", "c")) for v in (values, scale * values + shift))
    for one, other in zip(before, after, strict=True):
        assert other.variance == pytest.approx(scale**2 * one.variance, rel=1e-6, abs=1e-9)


def test_negative_estimates_are_kept_and_count_as_zero():
    values = np.array([[0.0, 1.0], [1.0, 0.0]])  # no main effect at all, only interaction
    found = by_name(values, ("a", "b"), max_order=1)
    assert found["a"].variance == pytest.approx(-0.5)
    assert (found["a"].share, found["a"].standard_deviation) == (0.0, 0.0)
    assert found["residual"].share == pytest.approx(1.0)


def test_equal_values_have_no_shares():
    assert all(
        math.isnan(item.share) for item in variance_components(np.full((2, 2), 0.1), "ab", max_order=1)
    )


@pytest.mark.parametrize(
    ("values", "factors", "order", "message"),
    [
        (np.zeros((2, 2)), ("a",), 1, "one axis per factor"),
        (np.zeros((2, 1)), ("a", "b"), 1, "'b' has 1 level"),
        (np.array([[0.0, np.nan], [1.0, 2.0]]), ("a", "b"), 1, "1 of 4 cells"),
        (np.zeros((2, 2)), ("a", "b"), 2, "max_order"),
        (np.zeros((2, 2)), ("a", "a"), 1, "one axis per factor"),
    ],
)
def test_incomplete_designs_are_refused(values, factors, order, message):
    with pytest.raises(DesignError, match=message):
        variance_components(values, factors, max_order=order)
