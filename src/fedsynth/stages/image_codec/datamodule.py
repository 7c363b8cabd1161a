"""Training images of the small autoencoder."""

from __future__ import annotations

from typing import Any

import lightning as L
from jaxtyping import UInt8
from torch import Tensor

from fedsynth.data.batches import tensor_loader


class ImagesData(L.LightningDataModule):
    """Batches of grey levels; every rank takes its share of each epoch.

    Args:
        image: Training images.
        batch_size: Images per step and rank.
        seed: Of the order.
        rank: This process.
        world_size: Processes that share the batches.
    """

    def __init__(
        self,
        image: UInt8[Tensor, "n c h w"],
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        self.tensors = {"image": image}
        self.options: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": True,
            "seed": seed,
            "rank": rank,
            "world_size": world_size,
            "pad": True,
            "min_last_batch": 1,
        }

    def train_dataloader(self) -> Any:
        return tensor_loader(self.tensors, **self.options)
