"""Latents and conditions in an endless shuffled order, cut into steps of one global batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import lightning as L
import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.data.batches import BatchOrder, TensorBatches, tensor_loader, whole_batch_loader
from fedsynth.seeding import generator


class EndlessOrder(BatchOrder):
    """Step i takes records [i B, (i + 1) B) of an endless row of shuffled passes over all records.

    So step i sees the same B records whatever the length of an epoch, the number of processes, or the part of a
    batch that fits into memory: rank r takes the r-th part of them, in ``accumulate`` micro-batches.

    Args:
        num_records: Training records.
        batch_size: B, records of all ranks together; a multiple of ``world_size``.
        micro_batch_size: Records of one forward pass of this rank, at most; the last of a step may be smaller.
        num_steps: Steps of the whole training.
        steps_per_epoch: Steps of an epoch; the last may have fewer.
        seed: Of the order.
        rank: This process.
        world_size: Processes that share a step.
    """

    def __init__(
        self,
        num_records: int,
        *,
        batch_size: int,
        micro_batch_size: int,
        num_steps: int,
        steps_per_epoch: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(
            num_records,
            batch_size=micro_batch_size,
            shuffle=True,
            seed=seed,
            rank=rank,
            world_size=world_size,
            pad=True,
        )
        self.global_batch_size = batch_size
        self.share = batch_size // world_size
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
        self._pass = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return len(self._steps()) * len(range(0, self.share, self.batch_size))

    def __iter__(self) -> Iterator[Int64[Tensor, " batch"]]:
        for step in self._steps():
            yield from self._rows(step).split(self.batch_size)

    def _steps(self) -> range:
        first = self.epoch * self.steps_per_epoch
        return range(first, max(first, min(first + self.steps_per_epoch, self.num_steps)))

    def _rows(self, step: int) -> Int64[Tensor, " share"]:
        first = step * self.global_batch_size + self.rank * self.share
        place = torch.arange(first, first + self.share)
        number = place // self.num_records
        parts = [
            self._pass(int(one))[place[number == one] - one * self.num_records] for one in number.unique()
        ]
        return torch.cat(parts)

    def _shuffled(self, number: int) -> Int64[Tensor, " n"]:
        return torch.randperm(self.num_records, generator=generator(self.seed, "batch-order", number))


class LatentImagesData(L.LightningDataModule):
    """Steps over training latents and conditions, and each of a few validation latents once.

    Args:
        train: ``latent`` and, unless unconditional, ``condition``.
        val: The same of validation images, with ``sigma``, the noise level of each, and ``noise``; may be empty.
        **order: As for ``EndlessOrder``.
    """

    def __init__(self, train: Mapping[str, Tensor], val: Mapping[str, Tensor], **order: Any) -> None:
        super().__init__()
        self.dataset, self.val, self.order = TensorBatches(train), dict(val), order

    def train_dataloader(self) -> Any:
        order = EndlessOrder(len(self.dataset), **self.order)
        order.set_epoch(self.trainer.current_epoch if self.trainer is not None else 0)
        return whole_batch_loader(self.dataset, order)

    def val_dataloader(self) -> Any:
        if not len(self.val["latent"]):
            return []
        return tensor_loader(
            self.val,
            batch_size=self.order["micro_batch_size"],
            shuffle=False,
            seed=0,
            rank=self.order.get("rank", 0),
            world_size=self.order.get("world_size", 1),
            pad=False,
            min_last_batch=1,
        )
