"""Labelled latents held in memory, for the stages that train on them."""

from __future__ import annotations

from typing import Any

import lightning as L
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.data.batches import tensor_loader


class LabelledLatentsData(L.LightningDataModule):
    """Training batches of latents and their classes; every rank takes its share of each epoch.

    Args:
        latent: Latents.
        label: Their classes.
        batch_size: Latents per step and rank.
        seed: Of the order.
        rank: This process.
        world_size: Processes that share the batches.
    """

    def __init__(
        self,
        latent: Float[Tensor, "n d"],
        label: Int64[Tensor, " n"],
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        self.tensors = {"latent": latent, "label": label}
        self.options: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": True,
            "seed": seed,
            "rank": rank,
            "world_size": world_size,
            "pad": True,
        }

    def train_dataloader(self) -> Any:
        return tensor_loader(self.tensors, **self.options)
