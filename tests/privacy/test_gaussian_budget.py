from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats

from fedsynth.errors import BudgetError, PrivacyError
from fedsynth.privacy import PrivacyParameterError, composed_epsilon
from fedsynth.privacy.budget import GaussianBudget
from fedsynth.records import InvalidTensorError
from fedsynth.seeding import generator


def streams(seed: int = 0) -> Callable[[int], torch.Generator]:
    return lambda client: generator(seed, "budget", client)


def budget(**changes: Any) -> GaussianBudget:
    given = {
        "epsilon": 4.0, "delta": 1e-5, "shares": {"counts": 0.25, "means": 0.75}, "num_clients": 3,
        "seed_generator": streams(),
    }  # fmt: skip
    return GaussianBudget(**(given | changes))


def test_all_parts_together_cost_exactly_the_budget() -> None:
    account = budget(num_releases={"counts": 4})
    for _ in range(4):
        account.release("counts", torch.zeros(3, 5), 1.0)
    account.release("means", torch.zeros(3, 2), 7.0)
    assert composed_epsilon([part.mu for part in account.parts], 1e-5) == pytest.approx(4.0, rel=1e-9)
    assert account.spent_share == pytest.approx(1.0)
    assert [(part.name, part.num_releases, part.sensitivity) for part in account.parts] == [
        ("counts", 4, 1.0), ("means", 1, 7.0),
    ]  # fmt: skip


def test_nothing_is_released_beyond_the_budget() -> None:
    account = budget()
    account.release("means", torch.zeros(3), 1.0)
    with pytest.raises(BudgetError, match="share of 'means' is spent: it was planned for 1"):
        account.release("means", torch.zeros(3), 1.0)
    assert account.spent_share == 0.75
    with pytest.raises(PrivacyParameterError, match="no share for 'radius'"):
        account.release("radius", torch.zeros(3), 1.0)


def test_noise_has_the_stated_deviation_and_is_every_client_s_own() -> None:
    noisy = budget(num_clients=2).release("means", torch.zeros(2, 20_000), 3.0)
    for own in noisy.values:
        assert stats.kstest(own.numpy() / noisy.std, "norm").pvalue > 1e-3
    assert abs(float(torch.corrcoef(noisy.values)[0, 1])) < 4 / math.sqrt(20_000)


def test_symmetric_noise_is_isotropic_in_the_frobenius_norm() -> None:
    noisy = budget(num_clients=1).release_symmetric("means", torch.zeros(1, 4000, 3, 3), 2.0)
    draws = noisy.values[0] / noisy.std
    assert torch.equal(draws, draws.mT)
    # <noise, D> has variance σ² for every symmetric D of Frobenius norm 1: a chi-square over 4,000 draws.
    for direction in (torch.eye(3) / math.sqrt(3), torch.tensor([[1.0, 2, 3], [2, -1, 0], [3, 0, 4]])):
        unit = (direction / direction.norm()).double()
        total = float((draws * unit).sum(dim=(1, 2)).square().sum())
        assert stats.chi2(4000).cdf(total) == pytest.approx(0.5, abs=0.4995)


def test_the_same_seed_gives_the_same_bits_and_another_part_other_noise() -> None:
    first, again = (budget().release("means", torch.zeros(3, 4), 1.0).values for _ in range(2))
    assert torch.equal(first, again)
    account = budget()
    account.release("counts", torch.zeros(3, 4), 1.0)
    later = account.release("means", torch.zeros(3, 4), 1.0).values
    assert not torch.equal(first, later)


def test_without_privacy_values_pass_unchanged_and_nothing_is_paid() -> None:
    account = budget(epsilon=math.inf)
    values = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(account.release("means", values, 1.0).values, values.double())
    assert account.parts == ()
    assert not account.is_private


def test_shared_noise_is_refused() -> None:
    with pytest.raises(PrivacyError, match="Clients 0 and 1 got generators in the same state"):
        budget(seed_generator=lambda client: generator(0, "same"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shares": {"means": 0.5}}, "add up to 1"),
        ({"num_releases": {"other": 2}}, r"names \['other'\], which have no share"),
        ({"num_releases": {"means": 0}}, r"num_releases\.means"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_an_impossible_budget_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyParameterError, match=message):
        budget(**change)


def test_values_of_other_clients_are_refused() -> None:
    with pytest.raises(InvalidTensorError, match=r"one entry per client \(3\), got shape \(2, 4\)"):
        budget().release("means", torch.zeros(2, 4), 1.0)
    with pytest.raises(InvalidTensorError, match="NaN or infinite"):
        budget().release("means", torch.full((3,), math.nan), 1.0)
