"""Poisson batches for DP-SGD: every record is drawn by itself, so a batch may have any size, also none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from fedsynth.data.batches import TensorBatches
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import derive_seed, generator


class PoissonOrder(Sampler[Tensor]):
    """Yields the record numbers of one batch after another: each record with probability q, independently.

    The batches of an epoch are a pure function of (seed, epoch). Unlike a shuffled order, a record may come
    twice in an epoch or not at all; this is what amplification by sampling rests on, and a seed that anybody
    knows undoes it.
    """

    def __init__(self, num_records: int, *, sample_rate: float, num_batches: int, seed: int) -> None:
        if num_records < 1:
            raise DataError("A training loader has no record. Check the partition and min_records.")
        if not 0 < sample_rate <= 1:
            raise ConfigError(
                f"sample_rate must be in (0, 1], got {sample_rate}. It is batch_size / records."
            )
        if num_batches < 1:
            raise ConfigError(f"num_batches must be ≥ 1, got {num_batches}.")
        self.num_records, self.sample_rate = num_records, sample_rate
        self.num_batches, self.seed = num_batches, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the batches of the next iteration; the training loop calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Int64[Tensor, " batch"]]:
        stream = generator(self.seed, "poisson", self.epoch)
        for _ in range(self.num_batches):
            # float64: torch's float32 numbers are multiples of 2⁻²⁴, too coarse for a small q.
            drawn = torch.rand(self.num_records, generator=stream, dtype=torch.float64) < self.sample_rate
            yield drawn.nonzero().squeeze(1)


def poisson_loader(
    tensors: Mapping[str, Tensor], *, sample_rate: float, num_batches: int, seed: int
) -> DataLoader[dict[str, Tensor]]:
    """A DataLoader over tensors in memory that yields Poisson batches ``{name: batch}``, possibly empty.

    As :func:`fedsynth.data.batches.tensor_loader`, it never touches the global random state.

    Args:
        tensors: Equal first dimensions.
        sample_rate: q in (0, 1].
        num_batches: Steps per epoch.
        seed: Of the draws.

    Raises:
        ConfigError: If q or the number of batches is impossible.
        DataError: If lengths differ or there is no tensor or no record.
    """
    if not tensors:
        raise DataError("A loader needs at least one tensor, got none.")
    dataset = TensorBatches(tensors)
    order = PoissonOrder(len(dataset), sample_rate=sample_rate, num_batches=num_batches, seed=seed)
    own = torch.Generator().manual_seed(derive_seed(seed, "loader"))
    return DataLoader(dataset, sampler=order, batch_size=None, collate_fn=_as_is, generator=own)


def _as_is(batch: Any) -> Any:
    return batch
