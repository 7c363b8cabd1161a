"""The order of training images: endless shuffled passes, the same rows a step however a step is cut."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.stages.diadm.datamodule import EndlessOrder, LatentImagesData


def rows(num_records: int, *, epochs: int = 1, **options: Any) -> list[list[int]]:
    order = EndlessOrder(
        num_records, **{"batch_size": 12, "micro_batch_size": 12, "num_steps": 20, "steps_per_epoch": 20,
                        "seed": 0, **options}
    )  # fmt: skip
    taken = []
    for epoch in range(epochs):
        order.set_epoch(epoch)
        batches = [batch.tolist() for batch in order]
        assert len(order) == len(batches)
        taken += batches
    return taken


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 5))
def test_every_pass_takes_each_record_once_in_a_new_order(num_records: int, seed: int) -> None:
    taken = flat(rows(num_records, seed=seed))
    assert len(taken) == 240
    passes = [taken[first : first + num_records] for first in range(0, 240 - num_records + 1, num_records)]
    assert all(sorted(one) == list(range(num_records)) for one in passes)
    if num_records > 9:
        assert passes[0] != passes[1]
    assert taken == flat(rows(num_records, seed=seed))


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 20), st.sampled_from([1, 2, 3, 4]), st.integers(1, 12))
def test_epochs_ranks_and_micro_batches_never_change_the_rows_of_a_step(
    num_records: int, steps_per_epoch: int, world_size: int, micro_batch_size: int
) -> None:
    whole = rows(num_records)
    parts = [
        rows(num_records, epochs=-(-20 // steps_per_epoch), steps_per_epoch=steps_per_epoch,
             micro_batch_size=micro_batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]  # fmt: skip
    assert all(len(batch) <= micro_batch_size for part in parts for batch in part)
    share = 12 // world_size
    by_rank = [flat(part) for part in parts]
    for step, wanted in enumerate(whole):
        got = [row for taken in by_rank for row in taken[step * share : (step + 1) * share]]
        assert got == wanted


def test_the_last_epoch_has_the_steps_that_are_left_and_later_ones_none() -> None:
    order = EndlessOrder(9, batch_size=4, micro_batch_size=2, num_steps=7, steps_per_epoch=3, seed=0)
    lengths = []
    for epoch in range(4):
        order.set_epoch(epoch)
        lengths.append(len(order))
    assert lengths == [6, 6, 2, 0]


def test_validation_takes_every_record_once_and_none_if_there_is_none() -> None:
    train = {"latent": torch.zeros(9, 1, 2, 2)}
    val = {"latent": torch.arange(5.0).reshape(5, 1, 1, 1)}
    order = {"batch_size": 4, "micro_batch_size": 4, "num_steps": 3, "steps_per_epoch": 3, "seed": 0}
    taken = [
        row for batch in LatentImagesData(train, val, **order).val_dataloader() for row in batch["latent"]
    ]
    assert sorted(float(row) for row in taken) == [0, 1, 2, 3, 4]
    assert LatentImagesData(train, {"latent": val["latent"][:0]}, **order).val_dataloader() == []
