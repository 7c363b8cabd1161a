"""Images to train on and real ones to choose the checkpoint by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.data.batches import BatchOrder, TensorBatches, tensor_loader, whole_batch_loader
from fedsynth.seeding import generator
from fedsynth.stages.image_set import ImageSet


class StepOrder(BatchOrder):
    """A fixed number of full batches an epoch, whatever the number of records.

    The batches of all epochs cut one stream of shuffled passes over the records, so that each record is seen equally
    often but for one time. Sets of unequal size are thereby trained on for equally many steps.
    """

    def __init__(
        self, num_records: int, *, num_steps: int, batch_size: int, seed: int, rank: int, world_size: int
    ) -> None:
        super().__init__(
            num_records, batch_size=batch_size, shuffle=True, seed=seed, rank=rank, world_size=world_size, pad=True
        )  # fmt: skip
        self.num_steps = num_steps

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[Int64[Tensor, " batch"]]:
        whole = self.batch_size * self.world_size
        first = self.epoch * self.num_steps * whole
        passes: dict[int, Tensor] = {}
        for start in range(first, first + self.num_steps * whole, whole):
            place = torch.arange(start, start + whole)[self.rank :: self.world_size]
            number = place // self.num_records
            wanted = set(number.tolist())
            passes = {key: passes[key] if key in passes else self._pass(key) for key in sorted(wanted)}
            stacked = torch.stack(list(passes.values()))
            yield stacked[number - number.min(), place % self.num_records]

    def _pass(self, number: int) -> Int64[Tensor, " n"]:
        return torch.randperm(self.num_records, generator=generator(self.seed, "batch-order", number))


class ImageData(L.LightningDataModule):
    """Batches of uint8 images with a row of targets in [0, 1] an image; the module makes gray levels of them.

    Args:
        train: Images to train on.
        val: Real validation images.
        batch_size: Images per step of this process.
        steps_per_epoch: Batches of an epoch; None for one pass over the images.
        seed: Of the order.
        rank: This process.
        world_size: Processes that share the batches.
    """

    def __init__(
        self,
        train: ImageSet,
        val: ImageSet,
        *,
        batch_size: int,
        steps_per_epoch: int | None,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        self.train = {"image": train.image, "target": train.training_targets()}
        self.val = {"image": val.image, "target": val.targets()}
        self.batch_size, self.steps_per_epoch = batch_size, steps_per_epoch
        self.sharding: dict[str, Any] = {"seed": seed, "rank": rank, "world_size": world_size}

    def train_dataloader(self) -> Any:
        if self.steps_per_epoch is None:  # fidelity: classifier-steps
            return tensor_loader(
                self.train, batch_size=self.batch_size, shuffle=True, pad=True, **self.sharding
            )
        data = TensorBatches(self.train)
        order = StepOrder(
            len(data), num_steps=self.steps_per_epoch, batch_size=self.batch_size, **self.sharding
        )
        return whole_batch_loader(data, order)

    def val_dataloader(self) -> Any:
        # Larger batches than in training: nothing is kept for gradients.
        return tensor_loader(
            self.val, batch_size=4 * self.batch_size, shuffle=False, pad=False, **self.sharding
        )
