"""Calibration against published values, an arbitrary-precision evaluation, an integral, and dp-accounting."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedsynth.privacy import (
    PrivacyParameterError,
    analytic_gaussian_std,
    gaussian_delta,
    gaussian_epsilon,
    shard_mean_sensitivity,
)

EPSILONS = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)
DELTAS = st.floats(-15, math.log10(0.5)).map(lambda exponent: 10.0**exponent)
SENSITIVITIES = st.floats(-6, 6).map(lambda exponent: 10.0**exponent)

GOLDEN = {
    1e-5: (3.7306316348, 1.9938124456, 1.0811618495, 0.6002290722),
    1e-6: (4.2246788893, 2.2304762712, 1.1935185872, 0.6529353844),
    1e-3: (2.5746570186, 1.4452391609, 0.8230776852, 0.4800137525),
}


def exact_delta(epsilon: float, std: float, sensitivity: float) -> mpmath.mpf:
    """Balle and Wang, Theorem 8, with 80 digits: the cancellation leaves more than 50."""
    with mpmath.workdps(80):
        epsilon, ratio = mpmath.mpf(epsilon), mpmath.mpf(std) / mpmath.mpf(sensitivity)
        first = mpmath.ncdf(1 / (2 * ratio) - epsilon * ratio)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-1 / (2 * ratio) - epsilon * ratio)


@pytest.mark.parametrize("delta", GOLDEN)
def test_std_equals_reference_values(delta):
    stds = [analytic_gaussian_std(epsilon, delta, 1.0) for epsilon in (1, 2, 4, 8)]
    assert stds == pytest.approx(GOLDEN[delta], abs=1e-8)


@settings(max_examples=150, deadline=None)
@given(EPSILONS, DELTAS, SENSITIVITIES)
def test_std_never_spends_more_than_the_budget_and_wastes_nothing(epsilon, delta, sensitivity):
    spent = exact_delta(epsilon, analytic_gaussian_std(epsilon, delta, sensitivity), sensitivity)
    assert spent <= delta
    assert spent >= delta * (1 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.just(0.0), EPSILONS), st.floats(-3, 3), SENSITIVITIES)
def test_delta_equals_arbitrary_precision(epsilon, log_ratio, sensitivity):
    std = 10.0**log_ratio * sensitivity
    expected = float(exact_delta(epsilon, std, sensitivity))
    # The exponent a² / 2 carries the rounding error of a, hence a tolerance that grows with it.
    exponent = (sensitivity / std / 2 - epsilon * std / sensitivity) ** 2
    assert gaussian_delta(epsilon, std, sensitivity) == pytest.approx(
        expected, rel=1e-11 + 1e-14 * exponent, abs=1e-300
    )


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.1, 5.0), (1, 3.73), (4, 1.08), (8, 0.6), (50, 0.15)])
def test_delta_equals_the_integral_of_its_derivative(epsilon, ratio):
    # dδ/dμ = φ(μ/2 - ε/μ), an integrand without any cancellation.
    integral, _ = integrate.quad(
        lambda mu: stats.norm.pdf(mu / 2 - epsilon / mu) if mu > 0 else 0.0,
        0,
        1 / ratio,
        epsabs=0,
        epsrel=1e-11,
    )
    assert gaussian_delta(epsilon, ratio, 1.0) == pytest.approx(integral, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1, 5, 10, 50, 1000])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_std_agrees_with_dp_accounting(epsilon, delta):
    expected = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    assert analytic_gaussian_std(epsilon, delta, 1.0) == pytest.approx(expected, rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(st.floats(-2, 2).map(lambda e: 10.0**e), st.floats(-12, -1).map(lambda e: 10.0**e))
def test_dp_accounting_finds_no_larger_epsilon(epsilon, delta):
    spent = gaussian_mechanism.get_epsilon_gaussian(analytic_gaussian_std(epsilon, delta, 1.0), delta)
    assert spent <= epsilon * (1 + 1e-9) + 1e-11  # its own tolerance is 1e-12


def test_privacy_loss_distribution_of_a_shard_mean_spends_the_budget():
    # An accountant that knows nothing of the closed form; it rounds losses up by at most its interval.
    sensitivity = shard_mean_sensitivity(clip_radius=11.0, shard_size=30)
    std = analytic_gaussian_std(4.0, 1e-5, sensitivity)
    distribution = pld.from_gaussian_mechanism(
        std, sensitivity=sensitivity, value_discretization_interval=1e-3
    )
    assert distribution.get_epsilon_for_delta(1e-5) == pytest.approx(4.0, abs=2e-3)


@settings(max_examples=100, deadline=None)
@given(EPSILONS, DELTAS, SENSITIVITIES)
def test_epsilon_inverts_std_and_is_rounded_up(epsilon, delta, sensitivity):
    std = analytic_gaussian_std(epsilon, delta, sensitivity)
    spent = gaussian_epsilon(delta, std, sensitivity)
    assert exact_delta(spent, std, sensitivity) <= delta
    assert spent == pytest.approx(epsilon, rel=1e-8, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(EPSILONS, DELTAS, st.floats(1.01, 100))
def test_std_falls_in_epsilon_and_in_delta(epsilon, delta, factor):
    std = analytic_gaussian_std(epsilon, delta, 1.0)
    assert analytic_gaussian_std(epsilon * factor, delta, 1.0) < std
    assert analytic_gaussian_std(epsilon, min(delta * factor, 0.9), 1.0) < std


@settings(max_examples=60, deadline=None)
@given(EPSILONS, DELTAS, SENSITIVITIES)
def test_std_is_proportional_to_sensitivity(epsilon, delta, sensitivity):
    expected = sensitivity * analytic_gaussian_std(epsilon, delta, 1.0)
    assert analytic_gaussian_std(epsilon, delta, sensitivity) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_std_never_exceeds_the_classical_bound_where_that_holds(epsilon, delta):
    assert analytic_gaussian_std(epsilon, delta, 1.0) <= math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_classical_formula_would_overspend_at_large_epsilon():
    classical = math.sqrt(2 * math.log(1.25 / 1e-3)) / 8
    assert gaussian_delta(8.0, classical, 1.0) > 1e-3
    assert analytic_gaussian_std(8.0, 1e-3, 1.0) > classical


@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.5, 0.99])
def test_epsilon_zero_bounds_the_total_variation_distance(delta):
    # TV(N(0, σ²), N(1, σ²)) = 2Φ(1/(2σ)) - 1 = erf(1/(2√2 σ)).
    std = analytic_gaussian_std(0.0, delta, 1.0)
    assert math.erf(1 / (2 * math.sqrt(2) * std)) == pytest.approx(delta, rel=1e-8)
    assert gaussian_delta(0.0, std, 1.0) <= delta


def test_infinite_epsilon_means_no_noise():
    assert analytic_gaussian_std(math.inf, 1e-5, 3.0) == 0.0
    assert gaussian_delta(math.inf, 0.0, 3.0) == 0.0
    assert gaussian_epsilon(1e-5, 0.0, 3.0) == math.inf


def test_limits_of_no_noise_and_infinite_noise():
    assert gaussian_delta(4.0, 0.0, 1.0) == 1.0
    assert gaussian_delta(4.0, math.inf, 1.0) == 0.0
    assert gaussian_epsilon(1e-5, math.inf, 1.0) == 0.0
    assert gaussian_epsilon(0.4, 1.0, 1.0) == 0.0  # TV = erf(1/(2√2)) = 0.383 is below δ already
    assert gaussian_epsilon(1e-5, 1e-200, 1.0) == math.inf


def test_results_are_plain_floats():
    assert type(analytic_gaussian_std(np.float64(1), 1e-5, np.float32(1))) is float
    assert type(gaussian_delta(1, 1, 1)) is float
    assert type(gaussian_epsilon(1e-5, 1, 1)) is float


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1.0, 1e-5, 1.0), "epsilon"),
        ((math.nan, 1e-5, 1.0), "epsilon"),
        ((1.0, 0.0, 1.0), "delta"),
        ((1.0, 1.0, 1.0), "delta"),
        ((1.0, math.nan, 1.0), "delta"),
        ((1.0, 1e-5, 0.0), "sensitivity"),
        ((1.0, 1e-5, math.inf), "sensitivity"),
        ((1.0, 1e-5, math.nan), "sensitivity"),
    ],
)
def test_calibration_refuses_impossible_values_by_name(arguments, name):
    with pytest.raises(PrivacyParameterError, match=f"^{name} must be"):
        analytic_gaussian_std(*arguments)


def test_evaluations_refuse_impossible_values_by_name():
    with pytest.raises(PrivacyParameterError, match=r"^std must be"):
        gaussian_delta(1.0, -1.0, 1.0)
    with pytest.raises(PrivacyParameterError, match=r"^std must be"):
        gaussian_epsilon(1e-5, math.nan, 1.0)
    with pytest.raises(PrivacyParameterError, match=r"^delta must be"):
        gaussian_epsilon(1.0, 1.0, 1.0)


def test_a_sensitivity_whose_noise_would_overflow_is_refused() -> None:
    with pytest.raises(PrivacyParameterError, match=r"sensitivity must be small enough .* got 1e\+308"):
        analytic_gaussian_std(0.1, 1e-5, 1e308)
