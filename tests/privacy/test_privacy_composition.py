from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy import (
    Composition,
    PrivacyParameterError,
    analytic_gaussian_std,
    check_shares,
    composed_epsilon,
    gaussian_mu,
    share_mu,
)

SHARES = (0.06, 0.45, 0.03, 0.06, 0.15, 0.25)
REACHING = (Composition.GDP, Composition.ZCDP, Composition.RDP)


def mus(epsilon: float, composition: Composition) -> list[float]:
    return [share_mu(share, epsilon=epsilon, delta=1e-5, composition=composition) for share in SHARES]


@pytest.mark.parametrize("composition", Composition)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_the_privacy_loss_distribution_never_exceeds_the_claim(
    epsilon: float, composition: Composition
) -> None:
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for mu in mus(epsilon, composition):
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    # The discretization is pessimistic by up to one interval for every release.
    assert accountant.get_epsilon(1e-5) <= epsilon + len(SHARES) * 1e-4
    if composition is Composition.GDP:
        assert accountant.get_epsilon(1e-5) >= epsilon * (1 - 1e-6)  # and nothing is wasted


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_the_shares_of_a_budget_compose_to_it_exactly(epsilon: float) -> None:
    assert composed_epsilon(mus(epsilon, Composition.GDP), 1e-5) == pytest.approx(epsilon, rel=1e-9)
    total = math.hypot(*mus(epsilon, Composition.GDP))
    assert total == pytest.approx(1 / analytic_gaussian_std(epsilon, 1e-5, 1.0), rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_looser_compositions_allow_less(epsilon: float) -> None:
    totals = [gaussian_mu(epsilon, 1e-5, composition) for composition in REACHING]
    assert totals[0] > totals[2] > totals[1]  # exact, Rényi, zero-concentrated
    basic = math.hypot(*mus(epsilon, Composition.BASIC))
    assert basic < totals[1]
    assert composed_epsilon(mus(epsilon, Composition.BASIC), 1e-5) < epsilon


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_the_zero_concentrated_budget_solves_its_equation(epsilon: float) -> None:
    rho = gaussian_mu(epsilon, 1e-5, Composition.ZCDP) ** 2 / 2
    assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_the_renyi_accountant_confirms_its_budget(epsilon: float) -> None:
    accountant = dp_accounting.rdp.RdpAccountant()
    mu = gaussian_mu(epsilon, 1e-5, Composition.RDP)
    accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    assert epsilon * (1 - 1e-6) < accountant.get_epsilon(1e-5) <= epsilon


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.05, 20),
    st.floats(1.01, 3),
    st.sampled_from([Composition.GDP, Composition.ZCDP]),
    st.floats(0.01, 1),
)
def test_more_epsilon_allows_more(
    epsilon: float, factor: float, composition: Composition, share: float
) -> None:
    low, high = (
        share_mu(share, epsilon=e, delta=1e-5, composition=composition) for e in (epsilon, epsilon * factor)
    )
    assert 0 < low < high


def test_without_a_budget_there_is_no_limit_and_no_noise() -> None:
    for composition in Composition:
        assert math.isinf(share_mu(0.5, epsilon=math.inf, delta=1e-5, composition=composition))
    assert composed_epsilon([], 1e-5) == 0
    assert math.isinf(composed_epsilon([0.1, math.inf], 1e-5))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"a": 0.5, "b": 0.4}, r"must add up to 1, got 0\.9"),
        ({"a": 1.5, "b": -0.5}, r"privacy\.shares\.b must be a finite number > 0, got -0\.5"),
        ({"a": 1.0, "b": 0.0}, r"privacy\.shares\.b must be a finite number > 0"),
        ({"a": 1.0, "b": math.nan}, r"privacy\.shares\.b"),
        ({"a": 1.0}, "must name exactly a, b, got a"),
        ({"a": 0.5, "b": 0.4, "c": 0.1}, "must name exactly a, b"),
    ],
)
def test_what_is_no_split_is_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(PrivacyParameterError, match=message):
        check_shares(shares, ("a", "b"), "privacy.shares")


def test_a_split_passes() -> None:
    check_shares({"a": 0.7, "b": 0.3}, ("a", "b"))


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(PrivacyParameterError, match="no μ"):
        gaussian_mu(1.0, 1e-5, Composition.BASIC)
    with pytest.raises(PrivacyParameterError, match="no μ"):
        gaussian_mu(0.0, 1e-5)
    with pytest.raises(PrivacyParameterError, match=r"share must be in \(0, 1\]"):
        share_mu(1.5, epsilon=1.0, delta=1e-5)
    with pytest.raises(PrivacyParameterError, match="mu must be >= 0"):
        composed_epsilon([-1.0], 1e-5)
