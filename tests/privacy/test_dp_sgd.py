"""Accounting of DP-SGD: prices against dp-accounting and quadrature, calibration, the ledger entry."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedsynth.privacy import Adjacency, Ledger, LedgerEntry, PrivacyParameterError, analytic_gaussian_std
from fedsynth.privacy.dp_sgd import (
    PoissonSchedule,
    calibrate,
    dp_sgd_epsilon,
    dp_sgd_ledger_entry,
    noise_to_clip_for,
)

DELTA = 1e-5
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def accountant_epsilon(z: float, q: float, steps: int, relation: dp_accounting.NeighboringRelation) -> float:
    """By dp-accounting directly, at its own default precision."""
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    accountant = PLDAccountant(relation)
    return accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps)).get_epsilon(DELTA)


@pytest.mark.parametrize(("z", "q", "steps"), [(1.5, 0.25, 40), (3.0, 0.5, 64), (4.0, 1.0, 10)])
def test_epsilon_is_that_of_dp_accounting_under_replace_one(z: float, q: float, steps: int) -> None:
    wanted = accountant_epsilon(z, q, steps, REPLACE_ONE)
    assert dp_sgd_epsilon(z, q, steps, delta=DELTA) == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.1), (2.0, 0.5), (0.8, 0.3)])
def test_one_step_has_the_delta_of_two_opposite_gradients(z: float, q: float) -> None:
    epsilon = dp_sgd_epsilon(z, q, 1, delta=1e-3, interval=1e-4)

    def excess(x: float) -> float:  # of (1-q) N(0, z²) + q N(+1, z²) over the same with -1: sizes stay equal
        shared = (1 - q) * stats.norm.pdf(x, 0, z)
        one, other = shared + q * stats.norm.pdf(x, 1, z), shared + q * stats.norm.pdf(x, -1, z)
        return max(0.0, one - math.exp(epsilon) * other)

    delta = integrate.quad(excess, -20, 20, limit=500)[0]
    assert delta == pytest.approx(1e-3, rel=0.02)


def test_replace_one_costs_more_than_add_or_remove_one() -> None:
    other = accountant_epsilon(2.0, 0.25, 30, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert dp_sgd_epsilon(2.0, 0.25, 30, delta=DELTA) > 1.5 * other


def test_a_full_batch_step_is_one_gaussian_release_of_sensitivity_two() -> None:
    z = noise_to_clip_for(3.0, DELTA, 1.0, 1)
    assert z == pytest.approx(analytic_gaussian_std(3.0, DELTA, 2.0))


@pytest.mark.parametrize(
    ("epsilon", "q", "steps"), [(2.0, 0.2, 64), (8.0, 0.2, 64), (0.3, 0.5, 8), (8.0, 1.0, 32)]
)
def test_calibrated_noise_spends_the_target_and_never_more(epsilon: float, q: float, steps: int) -> None:
    z = noise_to_clip_for(epsilon, DELTA, q, steps)
    spent = accountant_epsilon(z, q, steps, REPLACE_ONE)
    assert epsilon * 0.99 < spent <= epsilon * (1 + 1e-4)


@settings(max_examples=6, deadline=None)
@given(st.floats(0.5, 10), st.floats(1.05, 3), st.floats(0.1, 0.9), st.integers(1, 40))
def test_less_noise_more_sampling_and_more_steps_cost_more(
    z: float, factor: float, q: float, steps: int
) -> None:
    price = dp_sgd_epsilon(z, q, steps, delta=DELTA)
    assert dp_sgd_epsilon(z * factor, q, steps, delta=DELTA) < price
    assert dp_sgd_epsilon(z, min(1.0, q * factor), steps, delta=DELTA) > price
    assert dp_sgd_epsilon(z, q, steps + 5, delta=DELTA) > price


def test_noise_falls_with_epsilon_and_vanishes_at_infinity() -> None:
    noise = [noise_to_clip_for(epsilon, DELTA, 0.3, 20) for epsilon in (1.0, 2.0, 8.0, math.inf)]
    assert noise == sorted(noise, reverse=True)
    assert noise[-1] == 0.0
    assert dp_sgd_epsilon(0.0, 0.3, 20, delta=DELTA) == math.inf


@given(st.integers(1, 500), st.integers(1, 700), st.integers(1, 40))
def test_a_schedule_draws_a_record_one_to_two_times_an_epoch_on_average(
    n: int, batch: int, epochs: int
) -> None:
    schedule = PoissonSchedule(n, batch, epochs)
    assert schedule.expected_batch_size == pytest.approx(schedule.sample_rate * n)
    assert schedule.num_steps == epochs * math.ceil(n / batch)
    assert 1 - 1e-12 <= schedule.sample_rate * schedule.steps_per_epoch < 2


def entry(epsilon: float, *schedules: PoissonSchedule) -> LedgerEntry:
    noises = calibrate(schedules, epsilon=epsilon, delta=DELTA)
    return dp_sgd_ledger_entry(noises, stage="encoder", delta=DELTA, clip_norm=0.5, not_covered=("sizes",))


def test_the_entry_costs_what_the_costliest_client_costs() -> None:
    schedules = PoissonSchedule(100, 20, 4), PoissonSchedule(30, 40, 4)
    noises = calibrate(schedules, epsilon=4.0, delta=DELTA)
    made = entry(4.0, *schedules)
    assert made.epsilon == max(noise.epsilon for noise in noises) <= 4.0
    assert made.adjacency is Adjacency.REPLACE_ONE
    assert made.sensitivity_range == (1.0, 1.0)
    levels = [0.5 * noise.noise_to_clip for noise in noises]
    np.testing.assert_allclose(made.noise_std_range, (min(levels), max(levels)))
    assert made.num_releases == 4 * 5 + 4
    assert LedgerEntry.from_record(made.to_record()) == made


def test_the_entry_adds_up_with_that_of_a_release() -> None:
    training = entry(4.0, PoissonSchedule(100, 200, 1))
    release = LedgerEntry(
        stage="release", mechanism="analytic Gaussian", epsilon=2.0, delta=DELTA, covered="", not_covered=(),
        adjacency=Adjacency.REPLACE_ONE, num_releases=1, sensitivity_range=(1, 1), noise_std_range=(1, 1),
    )  # fmt: skip
    total = Ledger([training, release]).total()
    assert total.epsilon == pytest.approx(6.0)
    assert total.delta == pytest.approx(2 * DELTA)


def test_without_noise_the_entry_carries_no_guarantee() -> None:
    made = entry(math.inf, PoissonSchedule(100, 20, 4))
    assert not made.is_private
    assert any("without noise" in text for text in made.not_covered)
    assert "sizes" in made.not_covered


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: noise_to_clip_for(0.0, DELTA, 0.5, 1), "epsilon must be in"),
        (lambda: noise_to_clip_for(101.0, DELTA, 0.5, 1), "epsilon must be in"),
        (lambda: noise_to_clip_for(math.nan, DELTA, 0.5, 1), "NaN"),
        (lambda: noise_to_clip_for(1.0, 1.0, 0.5, 1), "delta must be in"),
        (lambda: noise_to_clip_for(1.0, DELTA, 1.5, 1), "sample_rate"),
        (lambda: noise_to_clip_for(1.0, DELTA, 0.0, 1), "sample_rate"),
        (lambda: dp_sgd_epsilon(-1.0, 0.5, 1, delta=DELTA), "noise_to_clip"),
        (lambda: dp_sgd_epsilon(1.0, 0.5, 0, delta=DELTA), "num_steps"),
        (lambda: PoissonSchedule(0, 1, 1), "num_records"),
        (lambda: PoissonSchedule(1, 1, -1), "num_epochs"),
        (lambda: calibrate([PoissonSchedule(5, 1, 1)], epsilon=-1.0, delta=DELTA), "epsilon"),
        (lambda: entry(1.0), "number of clients"),
    ],
)  # fmt: skip
def test_impossible_parameters_are_refused_by_name(call, wanted: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PrivacyParameterError, match=wanted):
        call()
