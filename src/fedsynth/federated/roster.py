"""The clients behind a combined training loader, and the means of what they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning.pytorch.utilities.combined_loader import CombinedLoader

from fedsynth.errors import ConfigError, DataError
from fedsynth.federated.client import ClientId, ClientUpdate, canonical_order


@dataclass(frozen=True)
class Roster:
    """Every client's loader and size.

    Attributes:
        loaders: Per client, a combined loader of its own loader with its batch limit.
        num_batches: Batches of one local epoch, after ``limit_train_batches``; infinite without a length.
        num_records: n_k, records of the client, whatever the limits.
    """

    loaders: Mapping[ClientId, CombinedLoader] = field(default_factory=dict)
    num_batches: Mapping[ClientId, int | float] = field(default_factory=dict)
    num_records: Mapping[ClientId, int] = field(default_factory=dict)

    @property
    def clients(self) -> list[ClientId]:
        """All clients in canonical order."""
        return canonical_order(self.loaders)

    def cost(self, client: ClientId) -> float:
        """How long a local epoch takes, relative to other clients."""
        batches = self.num_batches[client]
        return batches if batches != float("inf") else self.num_records[client]

    @classmethod
    def from_loader(cls, combined: CombinedLoader, num_clients: int | None = None) -> Roster:
        """Read the clients off ``CombinedLoader({client: loader}, mode="sequential")``.

        Raises:
            ConfigError: If the loader has another form or another number of clients.
            DataError: If a client has no batch or an unknown number of records.
        """
        iterables = combined.iterables
        if combined._mode != "sequential" or not isinstance(iterables, Mapping) or not iterables:
            raise ConfigError(
                "train_dataloader() must return CombinedLoader({client: loader, ...}, mode='sequential'), "
                f"got mode {combined._mode!r} over {type(iterables).__name__}. It comes from the data module."
            )
        if num_clients is not None and len(iterables) != num_clients:
            raise ConfigError(
                f"federation.num_clients is {num_clients}, but the data module has {len(iterables)} clients: "
                f"{canonical_order(iterables)}. Make the partition and the federation agree."
            )
        loaders, batches, records = {}, {}, {}
        for client, loader, limit in zip(iterables, combined.flattened, combined.limits or [], strict=True):
            if limit == 0:
                raise DataError(
                    f"Client {client!r} has no training batch ({_num_records(client, loader)} records). "
                    "Lower the batch size, keep the last batch, or require more records per client."
                )
            loaders[client] = CombinedLoader([loader], mode="sequential")
            loaders[client].limits = [limit]
            batches[client] = limit
            records[client] = _num_records(client, loader)
        return cls(loaders, batches, records)


def _num_records(client: ClientId, loader: object) -> int:
    for holder in (loader, getattr(loader, "dataset", None)):
        if (num_records := getattr(holder, "num_records", None)) is not None:
            return int(num_records)
    try:
        return len(loader.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError) as error:
        raise DataError(
            f"The number of records of client {client!r} is unknown: its {type(loader).__name__} has neither "
            "num_records nor a dataset with a length. FedAvg weighs clients by it; set loader.num_records."
        ) from error


def mean_metrics(updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """Record-weighted means Σ n_k m_k / Σ n_k over the clients that report a metric, plus each client's loss.

    ``train_loss`` becomes ``train/loss`` (unless the module logs that name itself) and
    ``client/<id>/train_loss``. The mean of clients' AUROCs is not the AUROC of their union.
    """
    means = {}
    for name in dict.fromkeys(name for update in updates for name in update.metrics):
        parts = [(u.num_records, u.metrics[name]) for u in updates if name in u.metrics]
        means[name] = sum(n * value for n, value in parts) / sum(n for n, _ in parts)
    if "train_loss" in means:
        means.setdefault("train/loss", means.pop("train_loss"))
    for update in updates:
        if "train_loss" in update.metrics:
            means[f"client/{update.client}/train_loss"] = update.metrics["train_loss"]
    return means
