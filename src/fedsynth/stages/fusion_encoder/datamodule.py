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

    A ``FederatedTrainer`` takes one loader a client; a stock Trainer takes one loader of all pairs, which is
    ``centralized=True``.

    Args:
        pairs: All pairs.
        batch_size: Records per step (and rank).
        seed: Root of every client's batch order.
        centralized: Pool the pairs of all clients, as no federation could.
        rank: This process. Ranks share the batches of the pooled pairs; of a federation, whole clients.
        world_size: Processes that share them.
    """

    def __init__(
        self,
        pairs: PairedClients,
        *,
        batch_size: int,
        seed: int,
        centralized: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        self.pairs, self.batch_size, self.seed = pairs, batch_size, seed
        self.centralized = centralized
        self.share = {"rank": rank, "world_size": world_size} if centralized else {}

    def train_dataloader(self) -> Any:
        """One loader per client, each with its own random order; or one of all pairs."""
        if self.centralized:
            return self._loader(torch.ones_like(self.pairs.train.label, dtype=torch.bool), "centralized")
        clients = self.pairs.train.client.unique().tolist()
        return CombinedLoader(
            {client: self._loader(self.pairs.train.client == client, client) for client in clients},
            mode="sequential",
        )

    def val_dataloader(self) -> Any:
        return tensor_loader(_tensors(self.pairs.val), batch_size=512, shuffle=False, seed=0, pad=False)

    def _loader(self, chosen: torch.Tensor, name: int | str) -> Any:
        return tensor_loader(
            _tensors(self.pairs.train, chosen),
            batch_size=self.batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, "batches", name),
            pad=True,
            **self.share,
        )


def _tensors(split: PairedSplit, chosen: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    named = {"image": split.image, "ecg": split.ecg, "label": split.label}
    return named if chosen is None else {name: tensor[chosen] for name, tensor in named.items()}
