from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedsynth.errors import PrivacyError
from fedsynth.privacy import PrivacyParameterError
from fedsynth.privacy.budget import GaussianBudget
from fedsynth.privacy.quantile import RadiusGrid, private_radius, require_payable_quantile
from fedsynth.records import InvalidTensorError
from fedsynth.seeding import generator

GRID = RadiusGrid(0.01, 1000.0, 10)


def budget(epsilon: float, seed: int = 0, num_clients: int = 4) -> GaussianBudget:
    return GaussianBudget(
        epsilon=epsilon,
        delta=1e-5,
        shares={"radius": 1.0},
        num_releases={"radius": GRID.num_steps},
        num_clients=num_clients,
        seed_generator=lambda client: generator(seed, "quantile", client),
    )


def norms(size: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(0.1, 20, size), torch.arange(size) % 4


def test_without_noise_the_radius_is_the_next_candidate_above_the_quantile() -> None:
    values, clients = norms()
    found = private_radius(values, clients, budget(math.inf), "radius", quantile=0.9, grid=GRID).radius
    step = (GRID.high / GRID.low) ** (1 / 2**GRID.num_steps)
    exact = float(values.quantile(0.9))
    assert exact <= found * (1 + 1e-3)
    assert found / step <= exact * (1 + 1e-3)


def test_the_share_of_records_inside_is_off_by_the_noise_of_a_count_at_most() -> None:
    values, clients = norms()
    for seed in range(20):
        found = private_radius(values, clients, budget(2.0, seed), "radius", quantile=0.8, grid=GRID)
        inside = float((values <= found.radius).double().mean())
        # Ten noisy comparisons, and one ratio of the grid (1.1 %).
        assert abs(inside - 0.8) < 4 * found.count_std / len(values) + 0.02


def test_the_order_of_records_does_not_matter() -> None:
    values, clients = norms()
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(1))
    first = private_radius(values, clients, budget(1.0), "radius", quantile=0.8, grid=GRID)
    assert first == private_radius(
        values[order], clients[order], budget(1.0), "radius", quantile=0.8, grid=GRID
    )


def test_norms_off_the_grid_end_at_its_ends() -> None:
    clients = torch.arange(400) % 4
    high = private_radius(
        torch.full((400,), 1e6), clients, budget(math.inf), "radius", quantile=0.9, grid=GRID
    )
    assert high.radius == pytest.approx(GRID.high)
    low = private_radius(torch.zeros(400), clients, budget(math.inf), "radius", quantile=0.9, grid=GRID)
    assert low.radius == GRID.radius(1)


def test_a_quantile_that_cannot_be_paid_for_is_refused_before_any_norm_is_looked_at() -> None:
    account = budget(0.5)
    with pytest.raises(
        PrivacyError, match=r"stages\.release: the private 0\.9 quantile .* cannot be paid for"
    ):
        require_payable_quantile(account, "radius", num_records=200, quantile=0.9, where="stages.release")
    assert account.spent_share == 0
    with pytest.raises(PrivacyError, match="Raise epsilon or the share"):
        private_radius(
            torch.ones(200), torch.zeros(200, dtype=torch.int64), account, "radius", quantile=0.9, grid=GRID
        )
    assert require_payable_quantile(account, "radius", num_records=10**6, quantile=0.9) > 0


@pytest.mark.parametrize(
    ("low", "high", "steps"), [(0.0, 1.0, 3), (2.0, 1.0, 3), (1.0, 2.0, 0), (1.0, 2.0, 31)]
)
def test_impossible_grids_are_refused(low: float, high: float, steps: int) -> None:
    with pytest.raises(PrivacyParameterError):
        RadiusGrid(low, high, steps)


@pytest.mark.parametrize(
    "change",
    [{"norms": torch.tensor([-1.0])}, {"norms": torch.zeros(0)}, {"norms": torch.tensor([math.nan])}],
)
def test_impossible_norms_are_refused(change: dict[str, Any]) -> None:
    values = change["norms"]
    clients = torch.zeros(len(values), dtype=torch.int64)
    with pytest.raises(InvalidTensorError):
        private_radius(values, clients, budget(math.inf), "radius", quantile=0.9, grid=GRID)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.1, math.nan])
def test_a_quantile_outside_its_range_is_refused(quantile: float) -> None:
    with pytest.raises(PrivacyParameterError):
        require_payable_quantile(budget(1.0), "radius", num_records=100, quantile=quantile)
