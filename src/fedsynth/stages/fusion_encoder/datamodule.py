"""The pairs of every client, one loader a client."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from fedsynth.data.batches import tensor_loader
from fedsynth.data.paired import PairedClients, PairedSplit
from fedsynth.seeding import derive_seed


class PairedClientsData(L.LightningDataModule):
    """Training pairs by client, and the global validation pairs.

    Args:
        pairs: All pairs.
        batch_size: Records per step.
        seed: Root of every client's batch order.
    """

    def __init__(self, pairs: PairedClients, *, batch_size: int, seed: int) -> None:
        super().__init__()
        self.pairs, self.batch_size, self.seed = pairs, batch_size, seed

    def train_dataloader(self) -> CombinedLoader:
        """One loader per client, each with its own random order."""
        clients = self.pairs.train.client.unique().tolist()
        return CombinedLoader({client: self._client_loader(client) for client in clients}, mode="sequential")

    def val_dataloader(self) -> Any:
        return tensor_loader(_tensors(self.pairs.val), batch_size=512, shuffle=False, seed=0, pad=False)

    def _client_loader(self, client: int) -> Any:
        own = self.pairs.train.client == client
        return tensor_loader(
            _tensors(self.pairs.train, own),
            batch_size=self.batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, "batches", client),
            pad=True,
        )


def _tensors(split: PairedSplit, chosen: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    named = {"image": split.image, "ecg": split.ecg, "label": split.label}
    return named if chosen is None else {name: tensor[chosen] for name, tensor in named.items()}
