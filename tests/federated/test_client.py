"""Cohorts and random streams depend on seed, round and client, and on nothing else."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.errors import ConfigError
from fedsynth.federated.client import Federation, canonical_order, random_stream, sample_cohort
from fedsynth.federated.strategies.fedavg import FedAvg


@given(
    num_clients=st.integers(1, 40),
    participation=st.floats(0.001, 1.0),
    seed=st.integers(0, 99),
    round_=st.integers(0, 99),
)
def test_a_cohort_has_its_share_of_distinct_clients(num_clients, participation, seed, round_) -> None:
    cohort = sample_cohort(num_clients, participation, seed, round_)
    assert len(cohort) == max(1, round(participation * num_clients))
    assert list(cohort) == sorted(set(cohort))
    assert set(cohort) <= set(range(num_clients))
    assert cohort == sample_cohort(num_clients, participation, seed, round_)


def test_every_client_takes_part_about_as_often() -> None:
    counts = np.zeros(10)
    for round_ in range(2000):
        counts[list(sample_cohort(10, 0.3, 1, round_))] += 1
    # Binomial(2000, 0.3): standard deviation 20.5; five of them.
    assert np.all(np.abs(counts - 600) < 103)


def test_cohorts_differ_between_rounds_and_seeds() -> None:
    assert len({sample_cohort(20, 0.5, 0, round_) for round_ in range(10)}) > 5
    assert len({sample_cohort(20, 0.5, seed, 0) for seed in range(10)}) > 5


@pytest.mark.parametrize(("num_clients", "participation"), [(0, 1.0), (5, 0.0), (5, 1.5)])
def test_impossible_cohorts_are_refused(num_clients, participation) -> None:
    with pytest.raises(ConfigError, match="cohort"):
        sample_cohort(num_clients, participation, 0, 0)


def test_canonical_order_is_numeric_then_lexicographic() -> None:
    assert canonical_order(["b", 10, "a", 9]) == [9, 10, "a", "b"]


def draws() -> tuple[float, float, float]:
    return torch.rand(1).item(), float(np.random.rand()), random.random()  # noqa: NPY002


def test_a_stream_repeats_and_leaves_the_surrounding_one_untouched() -> None:
    def seeded() -> None:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)

    seeded()
    expected = [draws(), draws()]
    seeded()
    outside = [draws()]
    with random_stream(1, "client", 0, "a"):
        first = draws()
    outside.append(draws())
    with random_stream(1, "client", 0, "a"):
        assert draws() == first
    with random_stream(1, "client", 1, "a"):
        assert draws() != first
    assert outside == expected


def test_a_stream_is_left_on_an_exception() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with pytest.raises(ZeroDivisionError), random_stream(1, "x"):
        torch.rand(int(5 / 0))
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_epochs": 0}, "local_epochs"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 1.2}, "participation"),
        ({"num_clients": 0}, "num_clients"),
        ({"strategy": "fedavg"}, "strategy"),
    ],
)
def test_an_impossible_federation_is_refused(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Federation(**{"local_epochs": 1, "seed": 0, "strategy": FedAvg(), **changes})
