"""The records of every client, one loader a client, whatever a record is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
from jaxtyping import Int64
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor

from fedsynth.seeding import derive_seed

#: ``tensor_loader`` or one with its arguments.
MakeLoader = Callable[..., Any]


class ClientsData(L.LightningDataModule):
    """Training records by client, and the global validation records.

    A ``FederatedTrainer`` takes one loader a client; a stock Trainer takes one loader of all records, which is
    ``centralized=True``.

    Args:
        train: Columns of the training records.
        client: Who holds each of them.
        val: Columns of the validation records.
        make_loader: Makes a loader of columns.
        batch_size: Records per step (and rank).
        seed: Root of every client's batch order.
        centralized: Pool the records of all clients, as no federation could.
        rank: This process. Ranks share the batches of the pooled records; of a federation, whole clients.
        world_size: Processes that share them.
    """

    def __init__(
        self,
        train: Mapping[str, Tensor],
        client: Int64[Tensor, " n"],
        val: Mapping[str, Tensor],
        *,
        make_loader: MakeLoader,
        batch_size: int,
        seed: int,
        centralized: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        self.train, self.client, self.val = dict(train), client, dict(val)
        self.make_loader, self.batch_size, self.seed = make_loader, batch_size, seed
        self.centralized = centralized
        self.share: dict[str, Any] = {"rank": rank, "world_size": world_size} if centralized else {}

    def train_dataloader(self) -> Any:
        """One loader per client, each with its own random order; or one of all records."""
        if self.centralized:
            return self.client_loader(self.train, "centralized")
        loaders = {}
        for client in self.client.unique().tolist():
            own = {name: column[self.client == client] for name, column in self.train.items()}
            loaders[client] = self.client_loader(own, client)
        return CombinedLoader(loaders, mode="sequential")

    def val_dataloader(self) -> Any:
        return self.make_loader(self.val, batch_size=512, shuffle=False, seed=0, pad=False)

    def client_loader(self, records: Mapping[str, Tensor], name: int | str) -> Any:
        """Shuffled batches of one client's records, or of all."""
        return self.make_loader(
            records,
            batch_size=self.batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, "batches", name),
            pad=True,
            **self.share,
        )
