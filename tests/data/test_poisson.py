"""Poisson batches: independent draws of the right rate, a function of (seed, epoch), any size."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from fedsynth.data.poisson import PoissonOrder, poisson_loader
from fedsynth.errors import ConfigError, DataError


def drawn(order: PoissonOrder) -> torch.Tensor:
    """[batch, record]: whether a batch holds a record."""
    table = torch.zeros(len(order), order.num_records, dtype=torch.bool)
    for row, index in zip(table, order, strict=True):
        row[index] = True
        assert len(index) == int(row.sum())  # no record twice in a batch
    return table


def test_batch_sizes_are_binomial() -> None:
    table = drawn(PoissonOrder(40, sample_rate=0.3, num_batches=2000, seed=1))
    sizes = table.sum(1).bincount(minlength=41).double().numpy()
    expected = 2000 * stats.binom.pmf(range(41), 40, 0.3)
    kept = expected > 5
    assert (
        stats.chisquare(sizes[kept], expected[kept] * sizes[kept].sum() / expected[kept].sum()).pvalue > 1e-3
    )


def test_records_are_drawn_independently_and_equally_often() -> None:
    table = drawn(PoissonOrder(30, sample_rate=0.2, num_batches=5000, seed=2)).double()
    assert float((table.mean(0) - 0.2).abs().max()) < 5 * (0.2 * 0.8 / 5000) ** 0.5
    correlation = torch.corrcoef(table.T) - torch.eye(30)
    assert float(correlation.abs().max()) < 5 / 5000**0.5


def test_batches_follow_from_seed_and_epoch_alone() -> None:
    first, again = (PoissonOrder(50, sample_rate=0.3, num_batches=4, seed=3) for _ in range(2))
    before = torch.get_rng_state()
    assert torch.equal(drawn(first), drawn(again))
    again.set_epoch(1)
    assert not torch.equal(drawn(first), drawn(again))
    assert not torch.equal(drawn(first), drawn(PoissonOrder(50, sample_rate=0.3, num_batches=4, seed=4)))
    assert torch.equal(before, torch.get_rng_state())


def test_a_rate_of_one_yields_all_records_and_a_tiny_one_empty_batches() -> None:
    assert bool(drawn(PoissonOrder(7, sample_rate=1.0, num_batches=2, seed=0)).all())
    tensors = {"x": torch.arange(3.0)}
    batches = list(poisson_loader(tensors, sample_rate=1e-9, num_batches=2, seed=0))
    assert [batch["x"].shape for batch in batches] == [(0,), (0,)]


def test_the_loader_yields_the_records_of_the_order() -> None:
    loader = poisson_loader({"x": torch.arange(20) * 10}, sample_rate=0.5, num_batches=3, seed=5)
    order = PoissonOrder(20, sample_rate=0.5, num_batches=3, seed=5)
    assert len(loader) == 3
    assert loader.dataset.num_records == 20
    for batch, index in zip(loader, order, strict=True):
        assert torch.equal(batch["x"], index * 10)


@pytest.mark.parametrize(
    ("changes", "error", "wanted"),
    [
        ({"sample_rate": 0.0}, ConfigError, "sample_rate"),
        ({"sample_rate": 1.1}, ConfigError, "sample_rate"),
        ({"num_batches": 0}, ConfigError, "num_batches"),
        ({"tensors": {}}, DataError, "at least one tensor"),
        ({"tensors": {"x": torch.zeros(0)}}, DataError, "no record"),
    ],
)
def test_impossible_loaders_are_refused(changes: dict, error: type[Exception], wanted: str) -> None:
    arguments = {"tensors": {"x": torch.zeros(3)}, "sample_rate": 0.5, "num_batches": 1, "seed": 0, **changes}
    with pytest.raises(error, match=wanted):
        poisson_loader(arguments.pop("tensors"), **arguments)
