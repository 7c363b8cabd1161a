"""The segments of every client, one loader a client, batches of similar length."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor

from fedsynth.data.length_buckets import bucketed_loader
from fedsynth.data.speech import SpeechClients, SpeechSplit
from fedsynth.seeding import derive_seed

COLUMNS = ("audio", "audio_length", "text", "text_length", "label", "participant")


class SpeechClientsData(L.LightningDataModule):
    """Training segments by client, and the global validation segments.

    Args:
        clients: All segments.
        batch_size: Segments per step (and rank).
        seed: Root of every client's batch order.
        centralized: Pool the segments of all clients, as no federation could.
        rank: This process. Ranks share the batches of the pooled segments; of a federation, whole clients.
        world_size: Processes that share them.
    """

    def __init__(
        self,
        clients: SpeechClients,
        *,
        batch_size: int,
        seed: int,
        centralized: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        self.clients, self.batch_size, self.seed, self.centralized = clients, batch_size, seed, centralized
        self.share: dict[str, Any] = {"rank": rank, "world_size": world_size} if centralized else {}

    def train_dataloader(self) -> Any:
        """One loader per client, each with its own random order; or one of all segments."""
        train = self.clients.train
        if self.centralized:
            return self._loader(torch.ones_like(train.label, dtype=torch.bool), "centralized")
        loaders = {
            client: self._loader(train.client == client, client) for client in train.client.unique().tolist()
        }
        return CombinedLoader(loaders, mode="sequential")

    def val_dataloader(self) -> Any:
        return bucketed_loader(columns(self.clients.val), batch_size=256, shuffle=False, seed=0, pad=False)

    def _loader(self, chosen: Tensor, name: int | str) -> Any:
        return bucketed_loader(
            {column: tensor[chosen] for column, tensor in columns(self.clients.train).items()},
            batch_size=self.batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, "batches", name),
            pad=True,
            **self.share,
        )


def columns(split: SpeechSplit) -> dict[str, Tensor]:
    """What a batch holds."""
    return {name: getattr(split, name) for name in COLUMNS}
