from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.data.mitbih import Beats
from fedsynth.data.partition import assign_records, data_report, dirichlet_partition, split_records
from fedsynth.errors import ConfigError, DataError

FRACTIONS = (0.7, 0.15, 0.15)
LABELS = np.arange(400) % 4 // 3  # 300 of class 0, 100 of class 1


def _random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=60, deadline=None)
@given(
    num_clients=st.integers(1, 12),
    alpha=st.sampled_from([1e-6, 0.01, 0.1, 0.5, 5.0, 1e4]),
    min_records=st.integers(1, 10),
    seed=st.integers(0, 2**31),
)
def test_every_client_gets_its_minimum_whatever_alpha(
    num_clients: int, alpha: float, min_records: int, seed: int
) -> None:
    client = dirichlet_partition(LABELS, num_clients, alpha, _random(seed), min_records=min_records)
    sizes = np.bincount(client, minlength=num_clients)
    assert len(sizes) == num_clients
    assert sizes.min() >= min_records
    assert sizes.sum() == len(LABELS)


def test_partition_is_a_function_of_the_generator_state_and_spares_global_state() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (dirichlet_partition(LABELS, 5, 0.5, _random(s), min_records=1) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_large_alpha_gives_equal_shares_of_each_class() -> None:
    client = dirichlet_partition(LABELS, 4, 1e6, _random(), min_records=1)
    for label, size in ((0, 75), (1, 25)):
        np.testing.assert_allclose(np.bincount(client[label == LABELS]), size, atol=1)


def test_class_shares_have_the_dirichlet_mean_and_variance() -> None:
    """Beta(α, (K-1)α) marginals: mean 1/K, variance (1/K)(1 - 1/K)/(Kα + 1)."""
    num_clients, alpha, draws = 4, 0.5, 600
    labels = np.zeros(1000, dtype=np.int64)
    random = _random(3)
    # With 1000 records, 4 clients and α = 0.5 the minimum of 1 rarely rejects a draw.
    shares = np.array(
        [
            np.mean(dirichlet_partition(labels, num_clients, alpha, random, min_records=1) == 0)
            for _ in range(draws)
        ]
    )
    variance = 0.25 * 0.75 / (num_clients * alpha + 1)
    assert abs(shares.mean() - 0.25) < 4 * np.sqrt(variance / draws)  # four standard errors
    assert abs(shares.var() / variance - 1) < 0.25


@pytest.mark.parametrize(
    ("num_clients", "alpha", "min_records"),
    [
        (0, 0.5, 1),
        (-1, 0.5, 1),
        (5, 0.0, 1),
        (5, -1.0, 1),
        (5, float("nan"), 1),
        (5, float("inf"), 1),
        (401, 0.5, 1),
        (5, 0.5, 81),
        (5, 0.5, 0),
    ],
)
def test_impossible_partition_is_a_config_error(num_clients: int, alpha: float, min_records: int) -> None:
    with pytest.raises(ConfigError):
        dirichlet_partition(LABELS, num_clients, alpha, _random(), min_records=min_records)


def test_as_many_records_as_clients_gives_one_each() -> None:
    assert sorted(dirichlet_partition(LABELS[:7], 7, 0.1, _random(), min_records=1)) == list(range(7))


def _records(num: int, first: int = 100) -> tuple[np.ndarray, np.ndarray]:
    record = np.repeat(np.arange(first, first + num), 4)
    return record, np.arange(len(record)) % 2


@pytest.mark.parametrize(
    ("num", "sizes"), [(48, (34, 7, 7)), (20, (14, 3, 3)), (12, (8, 2, 2)), (3, (1, 1, 1))]
)
def test_split_sizes_are_the_largest_remainder_rounding(num: int, sizes: tuple[int, ...]) -> None:
    fractions = FRACTIONS if num > 3 else (1 / 3, 1 / 3, 1 / 3)
    splits = split_records(*_records(num), fractions=fractions, generator=_random(), groups=())
    assert tuple(map(len, splits)) == sizes


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_splits_are_disjoint_complete_and_keep_groups_together(seed: int) -> None:
    record, label = _records(48)
    groups = ((101, 102), (110, 111, 112), (999,))
    splits = split_records(record, label, fractions=FRACTIONS, generator=_random(seed), groups=groups)
    assert sorted(sum(splits, ())) == sorted(set(record.tolist()))
    assert tuple(map(len, splits)) == (34, 7, 7)
    for group in groups[:2]:
        assert any(set(group) <= set(split) for split in splits)


def test_every_split_holds_both_classes_even_if_few_records_do() -> None:
    record, label = _records(48)
    label = label * np.isin(record, [100, 101, 102, 103])
    for seed in range(20):
        splits = split_records(record, label, fractions=FRACTIONS, generator=_random(seed), groups=())
        assert all(label[np.isin(record, split)].any() for split in splits)


def test_split_without_both_classes_possible_is_a_data_error() -> None:
    record, label = _records(48)
    with pytest.raises(DataError, match="both classes"):
        split_records(record, label * (record == 100), fractions=FRACTIONS, generator=_random(), groups=())
    with pytest.raises(DataError, match="both classes"):
        split_records(record, label * 0, fractions=FRACTIONS, generator=_random(), groups=())


@pytest.mark.parametrize("fractions", [(0.7, 0.3), (0.8, 0.15, 0.15), (1.0, 0.0, 0.0), (1.2, -0.1, -0.1)])
def test_impossible_fractions_are_a_config_error(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        split_records(*_records(48), fractions=fractions, generator=_random(), groups=())


def test_records_are_assigned_whole_evenly_and_groups_together(beats: Beats) -> None:
    assignment = assign_records(beats.record, beats.label, 4, _random(), groups=((201, 202),))
    assert set(assignment) == set(beats.record.tolist())
    assert assignment[201] == assignment[202]
    sizes = np.bincount(list(assignment.values()), minlength=4)
    assert sizes.min() >= 2


def test_assignment_gives_both_classes_to_every_client_where_possible() -> None:
    record, label = _records(20)
    label = label * (record < 105)  # only five records hold class 1
    for seed in range(10):
        assignment = assign_records(record, label, 5, _random(seed), groups=())
        assert sorted(assignment[number] for number in range(100, 105)) == [0, 1, 2, 3, 4]


def test_assignment_falls_back_to_the_fewest_missing_classes() -> None:
    record, label = _records(20)
    label = label * (record < 103)  # three records cannot serve five clients
    assignment = assign_records(record, label, 5, _random(), groups=())
    assert len({assignment[number] for number in range(100, 103)}) == 3


def test_fewer_records_than_clients_go_to_as_many_clients_one_each() -> None:
    assignment = assign_records(*_records(20), 50, _random(), groups=())
    assert sorted(assignment.values()) == list(range(20))


def test_impossible_assignment_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="num_clients"):
        assign_records(*_records(20), 0, _random(), groups=())
    nothing = np.array([], dtype=np.int64)
    with pytest.raises(ConfigError, match="no ECG record"):
        assign_records(nothing, nothing, 3, _random(), groups=())


def test_report_counts_each_record_once() -> None:
    label, client = np.array([0, 0, 1, 1, 1]), np.array([0, 2, 0, 2, 2])
    assert data_report(label, client, 3) == [{"0": 1, "1": 1}, {"0": 0, "1": 0}, {"0": 1, "1": 2}]
