from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.data.batches import BatchOrder, tensor_loader
from fedsynth.errors import ConfigError, DataError


def _loader(num: int, **changes: Any) -> torch.utils.data.DataLoader:
    options = {"batch_size": 4, "shuffle": True, "seed": 7, "pad": True} | changes
    return tensor_loader({"x": torch.arange(num), "y": torch.arange(num) * 10.0}, **options)


def _order(loader: torch.utils.data.DataLoader, epoch: int = 0) -> list[int]:
    loader.sampler.set_epoch(epoch)
    batches = [batch["x"] for batch in loader]
    return torch.cat(batches).tolist() if batches else []


shapes = {
    "num": st.integers(1, 80),
    "batch_size": st.integers(1, 20),
    "world_size": st.integers(1, 6),
    "shuffle": st.booleans(),
    "epoch": st.integers(0, 3),
}


@settings(max_examples=60, deadline=None)
@given(**shapes)
def test_evaluation_shards_are_disjoint_and_complete(
    num: int, batch_size: int, world_size: int, shuffle: bool, epoch: int
) -> None:
    options = {"batch_size": batch_size, "world_size": world_size, "shuffle": shuffle, "pad": False}
    seen = [x for rank in range(world_size) for x in _order(_loader(num, rank=rank, **options), epoch)]
    assert sorted(seen) == list(range(num))


@settings(max_examples=60, deadline=None)
@given(**shapes)
def test_training_ranks_get_equal_batches_and_miss_no_record(
    num: int, batch_size: int, world_size: int, shuffle: bool, epoch: int
) -> None:
    options = {"batch_size": batch_size, "world_size": world_size, "shuffle": shuffle, "pad": True}
    loaders = [_loader(num, rank=rank, **options) for rank in range(world_size)]
    sizes = [[len(batch["x"]) for batch in loader] for loader in loaders]
    assert all(shape == sizes[0] for shape in sizes)
    assert all(len(loader) == len(sizes[0]) for loader in loaders)
    seen = [x for loader in loaders for x in _order(loader, epoch)]
    assert set(seen) == set(range(num))
    assert len(seen) - num < world_size


@settings(max_examples=60, deadline=None)
@given(num=st.integers(2, 80), batch_size=st.integers(2, 20), minimum=st.integers(1, 5))
def test_no_batch_but_a_single_one_is_below_the_minimum(num: int, batch_size: int, minimum: int) -> None:
    minimum = min(minimum, batch_size)
    sizes = [len(batch["x"]) for batch in _loader(num, batch_size=batch_size, min_last_batch=minimum)]
    assert sum(sizes) == num
    assert len(sizes) == 1 or min(sizes) >= minimum
    assert max(sizes) < batch_size + minimum


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    assert [len(batch["x"]) for batch in _loader(9)] == [4, 5]
    assert [len(batch["x"]) for batch in _loader(9, min_last_batch=1)] == [4, 4, 1]
    assert [len(batch["x"]) for batch in _loader(1)] == [1]


def test_order_is_a_pure_function_of_seed_and_epoch() -> None:
    loader = _loader(50)
    third = _order(loader, 3)
    assert _order(loader, 0) != third
    assert _order(loader, 3) == third  # whatever was iterated before
    assert _order(_loader(50), 3) == third
    assert _order(_loader(50, seed=8), 3) != third
    assert _order(_loader(50, shuffle=False), 3) == list(range(50))


def test_order_of_all_ranks_together_is_that_of_one_process() -> None:
    alone = _order(_loader(48), 2)
    ranks = [_order(_loader(48, rank=rank, world_size=3), 2) for rank in range(3)]
    assert [x for step in zip(*ranks, strict=True) for x in step] == alone


def test_shuffled_first_record_is_uniform() -> None:
    loader = _loader(5)
    counts = torch.bincount(torch.tensor([_order(loader, epoch)[0] for epoch in range(1000)]), minlength=5)
    chi_squared = ((counts - 200.0) ** 2 / 200).sum()
    assert chi_squared < 18.5  # 0.999 quantile at 4 degrees of freedom


def test_rows_of_different_tensors_stay_together() -> None:
    for batch in _loader(23):
        assert torch.equal(batch["y"], batch["x"] * 10.0)


def test_iterating_leaves_the_global_random_state_alone() -> None:
    loader = _loader(30)
    state = torch.get_rng_state()
    assert sum(1 for _ in loader) == len(loader)
    assert torch.equal(state, torch.get_rng_state())


def test_dataset_length_is_the_number_of_records() -> None:
    assert len(_loader(30).dataset) == 30  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 0}, {"min_last_batch": 0}, {"rank": 2, "world_size": 2}, {"rank": -1}, {"world_size": 0}],
)
def test_impossible_shape_is_a_config_error(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        _loader(10, **change)


def test_unequal_lengths_no_tensor_and_empty_training_are_data_errors() -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False, "seed": 0}
    with pytest.raises(DataError, match="equal lengths"):
        tensor_loader({"x": torch.zeros(3), "y": torch.zeros(4)}, pad=True, **options)
    with pytest.raises(DataError, match="at least one"):
        tensor_loader({}, pad=True, **options)
    with pytest.raises(DataError, match="no record"):
        tensor_loader({"x": torch.zeros(0)}, pad=True, **options)


def test_empty_evaluation_yields_nothing() -> None:
    assert _order(_loader(0, pad=False)) == []
    assert len(BatchOrder(0, batch_size=4, shuffle=True, seed=0, pad=False)) == 0
