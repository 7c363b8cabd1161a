"""Wilson intervals and residual risk: statsmodels, exact coverage, the ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from fedsynth.attacks import residual_risk, wilson_proportion
from fedsynth.evaluation import EvaluationError


@given(st.integers(1, 3_000), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_interval_equals_statsmodels(trials, share, confidence):
    successes = round(share * trials)
    found = wilson_proportion(successes, trials, confidence=confidence)
    low, high = proportion_confint(successes, trials, alpha=1 - confidence, method="wilson")
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert 0 <= found.low <= found.share <= found.high <= 1


def test_limits_are_the_shares_a_score_test_just_rejects():
    found, z = wilson_proportion(7, 40), stats.norm.ppf(0.975)
    for limit in (found.low, found.high):
        assert abs(found.share - limit) == pytest.approx(z * math.sqrt(limit * (1 - limit) / 40))


def test_fractional_successes_lie_between_whole_ones():
    lower, middle, upper = (wilson_proportion(k, 20) for k in (3, 3.5, 4))
    assert lower.low < middle.low < upper.low
    assert lower.high < middle.high < upper.high


@pytest.mark.parametrize(
    ("train", "control", "expected"),
    [(30, 30, 0.0), (100, 10, 1.0), (55, 10, 0.5), (0, 0, 0.0), (0, 50, -1.0)],
)
def test_risk_is_the_share_of_what_the_control_leaves_to_gain(train, control, expected):
    risk = residual_risk(wilson_proportion(train, 100), wilson_proportion(control, 100))
    assert risk.estimate == pytest.approx(expected)
    assert risk.low <= risk.estimate <= risk.high <= 1
    assert risk.low < expected < risk.high or expected == 1.0


def test_risk_against_an_unhittable_control_is_the_rate_and_its_wilson_limit():
    # With very many control attacks without success the failure rate of the control is 1 for certain.
    train = wilson_proportion(12, 80)
    risk = residual_risk(train, wilson_proportion(0, 10**9))
    assert (risk.estimate, risk.low, risk.high) == pytest.approx(
        (train.share, train.low, train.high), abs=1e-6
    )


def test_nothing_is_left_to_gain_when_the_control_always_succeeds():
    risk = residual_risk(wilson_proportion(5, 10), wilson_proportion(10, 10))
    assert all(map(math.isnan, (risk.estimate, risk.low, risk.high)))


def test_certain_success_has_the_limit_of_success_that_is_nearly_certain():
    control = wilson_proportion(20, 100)
    certain, nearly = (residual_risk(wilson_proportion(k, 100), control) for k in (100, 100 - 1e-9))
    assert certain.high == 1.0
    assert nearly.high == pytest.approx(1.0, abs=1e-6)
    assert certain.low == pytest.approx(nearly.low, abs=1e-3)


@given(st.integers(0, 50), st.integers(0, 49), st.integers(1, 10))
def test_risk_grows_with_training_success_and_falls_with_control_success(train, control, more):
    def risk(first: int, second: int) -> tuple[float, float, float]:
        result = residual_risk(wilson_proportion(first, 60), wilson_proportion(second, 60))
        return result.estimate, result.low, result.high

    base, stronger, harder = risk(train, control), risk(train + more, control), risk(train, control + more)
    assert all(a <= b + 1e-12 for a, b in zip(base, stronger, strict=True))
    assert all(a >= b - 1e-12 for a, b in zip((base[0], base[1]), (harder[0], harder[1]), strict=True))


@pytest.mark.parametrize(
    ("s_train", "s_control"), [(0.02, 0.02), (0.2, 0.05), (0.5, 0.3), (0.9, 0.6), (0.97, 0.1)]
)
def test_interval_covers_the_true_risk_as_often_as_promised(s_train, s_control):
    # Exact coverage over all outcomes of 40 attacks on either side. Wilson's own oscillates around 95 %, and near rates
    # of 0 whole numbers of successes cannot but cover more.
    trials, truth = 40, (s_train - s_control) / (1 - s_control)
    chance = [stats.binom.pmf(np.arange(trials + 1), trials, rate) for rate in (s_train, s_control)]
    covered = 0.0
    for i in range(trials + 1):
        for j in range(trials):
            risk = residual_risk(wilson_proportion(i, trials), wilson_proportion(j, trials))
            covered += chance[0][i] * chance[1][j] * (risk.low <= truth <= risk.high)
    assert covered > 0.935
    assert covered < 0.98 or s_train == 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 0), "trials must be an integer >= 1, got 0"),
        ((4, 3), r"successes must be a number in \[0, 3\], got 4"),
        ((-1, 3), "successes must be"),
        ((math.nan, 3), "successes must be"),
        ((1, 3, 1.0), r"confidence must be a number in \(0, 1\)"),
    ],
)
def test_impossible_proportions_are_refused(arguments, message):
    with pytest.raises(EvaluationError, match=message):
        wilson_proportion(arguments[0], arguments[1], confidence=(*arguments, 0.95)[2])
