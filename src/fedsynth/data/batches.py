"""In-memory batches: whole batches are indexed at once, in an order that depends on (seed, epoch) only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import derive_seed, generator


class TensorBatches(Dataset[dict[str, Tensor]]):
    """Tensors of equal length; an index is a vector of record numbers and an item is a whole batch.

    ``len()`` is the number of records (n_k of FedDP-PALD Eq. 17), not of batches.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        lengths = {name: len(tensor) for name, tensor in tensors.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"Tensors of one loader must have equal lengths, got {lengths}.")
        self.tensors = dict(tensors)
        self.num_records = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self.num_records

    def __getitem__(self, index: Int64[Tensor, " batch"]) -> dict[str, Tensor]:
        return {name: tensor[index] for name, tensor in self.tensors.items()}


class BatchOrder(Sampler[Tensor]):
    """Yields the record numbers of one batch after another for this rank.

    The order of all records is a pure function of (seed, epoch); rank r takes every world_size-th record from
    r on. With `pad`, records from the start are repeated until all ranks hold equally many, so that ranks run
    equal numbers of batches; without it, ranks hold disjoint shards and nothing is repeated. A last batch
    smaller than `min_last_batch` joins the one before (BatchNorm cannot train on one record); a single small
    batch stays.
    """

    def __init__(
        self,
        num_records: int,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        pad: bool,
        min_last_batch: int = 2,
    ) -> None:
        if batch_size < 1 or min_last_batch < 1:
            raise ConfigError(
                f"batch_size and min_last_batch must be ≥ 1, got {batch_size} and {min_last_batch}."
            )
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in [0, world_size), got rank {rank} of {world_size}.")
        if pad and num_records == 0:
            raise DataError("A training loader has no record. Check the partition and min_records.")
        self.num_records = num_records
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.pad = pad
        self.min_last_batch = min_last_batch
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._batch_sizes(self._shard_size()))

    def __iter__(self) -> Iterator[Int64[Tensor, " batch"]]:
        yield from self._shard().split(self._batch_sizes(self._shard_size()))

    def _shard_size(self) -> int:
        if self.pad:
            return -(-self.num_records // self.world_size)
        return len(range(self.rank, self.num_records, self.world_size))

    def _shard(self) -> Int64[Tensor, " shard"]:
        return self._order()[self.rank :: self.world_size]

    def _order(self) -> Int64[Tensor, " total"]:
        """The records of all ranks, and again those from the start on where ranks are padded."""
        order = torch.arange(self.num_records)
        if self.shuffle:
            order = torch.randperm(
                self.num_records, generator=generator(self.seed, "batch-order", self.epoch)
            )
        total = self._shard_size() * self.world_size if self.pad else self.num_records
        return order[torch.arange(total) % max(1, self.num_records)]

    def _batch_sizes(self, shard_size: int) -> list[int]:
        full, rest = divmod(shard_size, self.batch_size)
        sizes = [self.batch_size] * full + ([rest] if rest else [])
        if len(sizes) > 1 and sizes[-1] < self.min_last_batch:
            last = sizes.pop()
            sizes[-1] += last
        return sizes


def tensor_loader(
    tensors: Mapping[str, Tensor],
    *,
    batch_size: int,
    shuffle: bool,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    pad: bool,
    min_last_batch: int = 2,
) -> DataLoader[dict[str, Tensor]]:
    """A DataLoader over tensors in memory that yields ``{name: batch}``.

    Iterating never touches the global random state. ``loader.sampler.set_epoch(epoch)`` selects the order.
    The loader shards by itself: with Lightning, use ``Trainer(use_distributed_sampler=False)``.

    Args:
        tensors: Equal first dimensions.
        batch_size: Records per batch and rank.
        shuffle: A new order each epoch.
        seed: Of the order.
        rank: This process.
        world_size: Number of processes that share the records.
        pad: True for training (equal numbers of batches on all ranks), False for evaluation (each record
            once).
        min_last_batch: See `BatchOrder`.

    Raises:
        ConfigError: If a size or rank is impossible.
        DataError: If lengths differ, there is no tensor, or a training loader is empty.
    """
    if not tensors:
        raise DataError("A loader needs at least one tensor, got none.")
    dataset = TensorBatches(tensors)
    order = BatchOrder(
        len(dataset),
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        rank=rank,
        world_size=world_size,
        pad=pad,
        min_last_batch=min_last_batch,
    )
    return whole_batch_loader(dataset, order)


def whole_batch_loader(dataset: TensorBatches, order: BatchOrder) -> DataLoader[dict[str, Tensor]]:
    """A DataLoader whose sampler yields the record numbers of whole batches; iterating draws nothing globally."""
    # Its own generator: making a DataLoader iterator draws a worker seed, from the global state by default.
    own = torch.Generator().manual_seed(derive_seed(order.seed, "loader"))
    return DataLoader(dataset, sampler=order, batch_size=None, collate_fn=_as_is, generator=own)


def _as_is(batch: Any) -> Any:
    return batch
