from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy.parameters import PrivacyParameterError
from fedsynth.prototypes.shards import _merge_plan, fixed_shards, merge_small_shards, shard_statistics
from fedsynth.records import InvalidTensorError


def random_records(seed, n=200, num_clients=3, num_classes=2):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (n,), generator=generator)
    clients = torch.randint(num_clients, (n,), generator=generator)
    record_ids = torch.randperm(10 * n, generator=generator)[:n]
    return record_ids, labels, clients


def test_shard_is_the_rank_of_the_id_within_the_cell():
    record_ids = torch.tensor([30, 10, 20, 40, 7, 5])
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    clients = torch.tensor([0, 0, 0, 0, 0, 0])
    assert fixed_shards(record_ids, labels, clients, 2).tolist() == [0, 0, 1, 1, 1, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6))
def test_shard_sizes_of_a_cell_differ_by_one_at_most(seed, num_shards):
    record_ids, labels, clients = random_records(seed)
    shards = fixed_shards(record_ids, labels, clients, num_shards)
    for client in range(3):
        for label in range(2):
            sizes = torch.bincount(shards[(clients == client) & (labels == label)], minlength=num_shards)
            assert int(sizes.max() - sizes.min()) <= 1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_shards_do_not_depend_on_the_order_of_records(seed):
    record_ids, labels, clients = random_records(seed)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed + 1))
    shards = fixed_shards(record_ids, labels, clients, 4)
    assert torch.equal(fixed_shards(record_ids[order], labels[order], clients[order], 4), shards[order])


def test_repeated_id_within_a_cell_is_refused_but_not_across_cells():
    ids, same = torch.tensor([3, 3]), torch.tensor([0, 0])
    with pytest.raises(InvalidTensorError, match="id 3 occurs"):
        fixed_shards(ids, same, same, 4)
    assert fixed_shards(ids, same, torch.tensor([0, 1]), 4).tolist() == [0, 0]


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.tensor([1.0]), torch.tensor([0]), torch.tensor([0])),
        (torch.tensor([1, 2]), torch.tensor([0]), torch.tensor([0])),
        ([1], torch.tensor([0]), torch.tensor([0])),
    ],
)
def test_shards_refuse_anything_but_equally_long_int64_tensors(arguments):
    with pytest.raises(InvalidTensorError):
        fixed_shards(*arguments, 4)


def test_shards_refuse_zero_shards():
    empty = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(PrivacyParameterError, match="num_shards"):
        fixed_shards(empty, empty, empty, 0)
    assert fixed_shards(empty, empty, empty, 4).numel() == 0


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5, 5, 5, 5], [5, 5, 5, 5]),
        ([5, 5, 4, 4], [5, 5, 0, 8]),
        ([5, 4, 4, 4], [9, 0, 8, 0]),  # the last one goes round to the first
        ([1, 1, 1, 0], [0, 0, 3, 0]),  # a whole cell below the minimum keeps one shard
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([0, 7, 2, 0], [0, 9, 0, 0]),  # the next non-empty one
    ],
)
def test_small_shards_join_the_next_one_by_count(sizes, expected):
    shards = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    zeros = torch.zeros_like(shards)
    merged, merges = merge_small_shards(shards, zeros, zeros, num_shards=4, min_shard_size=5)
    assert torch.bincount(merged, minlength=4).tolist() == expected
    assert bool(merges) == (sizes != expected)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 10))
def test_merging_ends_keeps_every_record_and_leaves_no_small_shard_beside_another(sizes, minimum):
    after = list(sizes)
    for source, target, size in _merge_plan(sizes, minimum):
        assert size == after[source] > 0
        assert after[target] > 0
        after[source], after[target] = 0, after[target] + size
    occupied = [size for size in after if size > 0]
    assert sum(after) == sum(sizes)
    assert len(occupied) <= 1 or min(occupied) >= minimum


def test_merges_are_returned_and_logged_per_cell(caplog):
    shards = torch.tensor([0, 0, 0, 1, 0, 0])
    clients = torch.tensor([0, 0, 0, 0, 1, 1])
    with caplog.at_level(logging.INFO, logger="fedsynth"):
        merged, merges = merge_small_shards(
            shards, torch.zeros_like(shards), clients, num_shards=2, min_shard_size=2
        )
    assert merged.tolist() == [0, 0, 0, 0, 0, 0]
    assert [(m.client, m.label, m.source, m.target, m.source_size) for m in merges] == [(0, 0, 1, 0, 1)]
    assert "client 0 class 0: 1→0" in caplog.text


def test_merging_refuses_an_unknown_shard():
    one = torch.tensor([0])
    with pytest.raises(InvalidTensorError, match=r"shards must lie in \[0, 4\)"):
        merge_small_shards(torch.tensor([4]), one, one, num_shards=4, min_shard_size=5)


def test_statistics_equal_numpy_shard_by_shard():
    record_ids, labels, clients = random_records(5)
    latents = torch.randn(200, 6, generator=torch.Generator().manual_seed(6)) + 100
    shards = fixed_shards(record_ids, labels, clients, 4)
    means, variances, counts = shard_statistics(
        latents, shards, labels, clients, num_clients=3, num_classes=2, num_shards=4
    )
    assert means.dtype == variances.dtype == torch.float64
    for cell in np.ndindex(3, 2, 4):
        rows = latents.double()[(clients == cell[0]) & (labels == cell[1]) & (shards == cell[2])].numpy()
        assert counts[cell] == len(rows)
        np.testing.assert_allclose(means[cell], rows.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(variances[cell], rows.var(axis=0), rtol=1e-9)  # population, ddof 0


def test_single_record_has_no_variance_and_an_empty_shard_only_zeros():
    means, variances, counts = shard_statistics(
        torch.tensor([[3.0, 4.0]]), *(torch.tensor([0]),) * 3, num_clients=2, num_classes=1, num_shards=1
    )
    assert means[0, 0, 0].tolist() == [3.0, 4.0]
    assert counts.flatten().tolist() == [1, 0]
    assert float(variances.abs().max()) == float(means[1].abs().max()) == 0.0


def test_statistics_refuse_an_index_outside_its_range():
    zero, one = torch.tensor([0]), torch.tensor([1])
    sizes = {"num_clients": 1, "num_classes": 1, "num_shards": 1}
    with pytest.raises(InvalidTensorError, match=r"labels must lie in \[0, 1\)"):
        shard_statistics(torch.zeros(1, 2), zero, one, zero, **sizes)
    with pytest.raises(InvalidTensorError, match="lengths"):
        shard_statistics(torch.zeros(2, 2), zero, zero, zero, **sizes)
