"""A small federation shared by the tests, and its run as a script for tests that need other processes.

The model has BatchNorm and dropout, the clients are unequal, and batches come as index tensors from a sampler
with ``set_epoch``: everything that makes a federated run hard to repeat.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedsynth.federated.client import Federation
from fedsynth.federated.sharding import ClientShardedStrategy
from fedsynth.federated.strategies.base import Strategy
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.strategies.fedbn import FedBN, batch_norm_names
from fedsynth.federated.strategies.fedgpd import FedGPD
from fedsynth.federated.strategies.fedmpa import FedMPA, parameter_names
from fedsynth.federated.strategies.fedproto import FedProto
from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.privacy.prototype_release import PrototypeMechanism
from fedsynth.seeding import derive_seed

SIZES = {"a": 13, "b": 30, "c": 8, "d": 21, "e": 17}
BATCH = 6


class Records(Dataset):
    def __init__(self, size: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        noise = torch.randn(size, 5, generator=source)
        self.x, self.y = noise + 0.3 * (seed % 3), (noise.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class IndexBatches:
    """Shuffled index batches from (seed, epoch); a tail of one record joins the batch before it."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _batches(self) -> list[Tensor]:
        order = torch.randperm(
            self.size, generator=torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        )
        batches = list(order.split(BATCH))
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._batches())

    def __len__(self) -> int:
        return len(self._batches())


def make_loaders(sizes: dict[str, int] = SIZES) -> dict[str, DataLoader]:
    loaders = {}
    for name, size in sizes.items():
        seed = 1 + sorted(SIZES).index(name)
        sampler = IndexBatches(size, seed)
        loaders[name] = DataLoader(
            Records(size, seed), batch_size=None, sampler=sampler, generator=torch.Generator()
        )
    return loaders


class TinyNet(lightning.LightningModule):
    def __init__(self, scheduler: str | None = None, dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.net = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)
        )
        self.scheduler = scheduler

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("fit/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val/loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        if self.scheduler is None:
            return optimizer
        if self.scheduler == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, factor=0.5, threshold=0.5
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val/loss"}}
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": self.scheduler}}


class EmbeddingNet(TinyNet):
    """The same network, which also shows its embeddings: ``hidden``, that some records lack, and ``fused``."""

    def answer(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        hidden = self.net[:3](x)
        fused = self.net[3](hidden)
        return self.net[4](fused), {"hidden": hidden, "fused": fused}, {"hidden": x[:, 0] < 0.8}

    def embed(self, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        _, embeddings, present = self.answer(batch[0])
        return embeddings, batch[1], present

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict:  # type: ignore[override]
        logits, embeddings, present = self.answer(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1])
        self.log("fit/loss", loss, on_step=False, on_epoch=True)
        return {"loss": loss, "embeddings": embeddings, "label": batch[1], "present": present}


def fedmpa(**changes: object) -> FedMPA:
    """All parts on, each strong enough to see in a few rounds."""
    settings: dict = {
        "parameters": parameter_names(TinyNet()),
        "modalities": ("hidden", "fused"),
        "pull_weights": {"hidden": 0.2, "fused": 0.3},
        "repulsion_weights": {"hidden": 0.4, "fused": 0.5},
        "repulsion": "hinge",
        "repulsion_margin": 1.0,
        "bank_momentum": 0.7,
        "aggregation": "similarity",
        "sensitivity": 2.0,
        "softplus": "outside",
        "server_momentum": 0.5,
        "server_learning_rate": 1.0,
    }
    return FedMPA(**{**settings, **changes})


def fedproto(**changes: object) -> FedProto:
    return FedProto(**{"pull_weight": 1.0, "modalities": ("fused",), **changes})  # type: ignore[arg-type]


def fedgpd(**changes: object) -> FedGPD:
    settings: dict = {"distillation_weight": 0.5, "temperature": 2.0, "modalities": ("fused",)}
    return FedGPD(**{**settings, **changes})


PROTOTYPE_STRATEGIES = {"fedmpa": fedmpa, "fedproto": fedproto, "fedgpd": fedgpd}
NOISE_SEED = 8_154_711_007_331


def noisy(epsilon: float = 4.0) -> dict:
    """Arguments of a strategy whose clients send noisy prototypes."""
    mechanism = PrototypeMechanism(
        epsilon=epsilon, delta=1e-5, clip_radius=2.0, num_rounds=3, num_modalities=2, min_class_records=2
    )
    return {"mechanism": mechanism, "noise_seed": NOISE_SEED}


class ToyData(lightning.LightningDataModule):
    def __init__(self, sizes: dict[str, int] = SIZES) -> None:
        super().__init__()
        self.sizes = sizes

    def train_dataloader(self) -> CombinedLoader:
        return CombinedLoader(make_loaders(self.sizes), mode="sequential")

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Records(24, 99), batch_size=10)


def federation(**changes: object) -> Federation:
    settings: dict = {"local_epochs": 2, "seed": 3, "strategy": FedAvg()}
    return Federation(**{**settings, **changes})


def make_trainer(root: Path | str, *, fed: Federation | None = None, **changes: object) -> FederatedTrainer:
    settings: dict = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 3,
        "default_root_dir": str(root),
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    return FederatedTrainer(federation=fed or federation(), **{**settings, **changes})


def fitted(
    root: Path | str, *, module: TinyNet | None = None, data: ToyData | None = None, **changes: object
):
    """(trainer, module) after a fit; ``ckpt_path`` resumes."""
    ckpt_path = changes.pop("ckpt_path", None)
    trainer, module = make_trainer(root, **changes), module or TinyNet()
    trainer.fit(module, datamodule=data or ToyData(), ckpt_path=ckpt_path)
    return trainer, module


def reference_fedavg(
    rounds: int, local_epochs: int, seed: int, sizes: dict[str, int] = SIZES
) -> dict[str, Tensor]:
    """The same training in plain PyTorch, without anything from fedsynth.federated."""
    return reference_training(rounds, local_epochs, seed, sizes)[0]


def reference_training(
    rounds: int, local_epochs: int, seed: int, sizes: dict[str, int] = SIZES, kept_names: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """(global state, what each client keeps): averaging, but each client goes on from its own ``kept_names``."""
    model, loaders = TinyNet(), make_loaders(sizes)
    kept: dict[str, dict[str, Tensor]] = {name: {} for name in loaders}
    for round_ in range(rounds):
        start = {k: v.clone() for k, v in model.state_dict().items()}
        states, counts = [], []
        for name in sorted(loaders):
            model.load_state_dict({**start, **kept[name]})
            model.train()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            torch.manual_seed(derive_seed(seed, "client", round_, name))
            for local_epoch in range(local_epochs):
                loaders[name].sampler.set_epoch(round_ * local_epochs + local_epoch)
                for x, y in loaders[name]:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model.net(x), y).backward()
                    optimizer.step()
            states.append({k: v.clone() for k, v in model.state_dict().items()})
            kept[name] = {k: states[-1][k] for k in kept_names}
            counts.append(sizes[name])
        averaged = {}
        for key, value in start.items():
            if value.is_floating_point():
                total = sum(n * state[key].double() for n, state in zip(counts, states, strict=True))
                averaged[key] = (total / sum(counts)).to(value.dtype)
            else:
                averaged[key] = torch.stack([state[key] for state in states]).max(0).values
        model.load_state_dict(averaged)
    return model.state_dict(), kept


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[k].double() - other[k].double()).abs().max()) for k in one)


def assert_same(one: object, other: object) -> None:
    """Equal to the last bit, tensors in nested dictionaries included."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, Tensor):
        assert isinstance(other, Tensor)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


class StopAt(Callback):
    """Raise, or kill the process, at one batch or hook of one round."""

    def __init__(
        self, where: str, round_: int, client: str | None = None, batch: int = 0, kill: bool = False
    ) -> None:
        self.where, self.round, self.client, self.batch, self.kill = where, round_, client, batch, kill
        self.current: str | None = None

    def _stop(self, trainer: FederatedTrainer, where: str, batch: int = 0) -> None:
        at = where == self.where and trainer.fit_loop.round == self.round and not trainer.sanity_checking
        if at and batch == self.batch and self.client in (None, self.current):
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("stopped on purpose")

    def on_client_start(self, trainer: FederatedTrainer, module: TinyNet, client: str) -> None:
        self.current = client

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
        self._stop(trainer, "train_batch", batch_idx)

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0) -> None:  # type: ignore[no-untyped-def]
        self._stop(trainer, "validation_batch", batch_idx)

    def on_before_aggregate(self, trainer: FederatedTrainer, module: TinyNet, updates: object) -> None:
        self._stop(trainer, "before_aggregate")

    def on_after_aggregate(self, trainer: FederatedTrainer, module: TinyNet, updates: object) -> None:
        self._stop(trainer, "after_aggregate")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--ckpt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=len(SIZES))
    parser.add_argument("--kill-at", type=int, nargs=2, metavar=("ROUND", "BATCH"))
    parser.add_argument("--every-n-steps", type=int, default=0)
    parser.add_argument("--sync-dist", action="store_true")
    parser.add_argument("--fail-client")
    parser.add_argument("--fedbn", action="store_true")
    parser.add_argument("--prototypes", choices=PROTOTYPE_STRATEGIES)
    parser.add_argument("--noisy", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = Path(options.out)
    sizes = dict(list(SIZES.items())[: options.clients])
    saving: dict = (
        {"every_n_train_steps": options.every_n_steps} if options.every_n_steps else {"save_top_k": -1}
    )
    callbacks: list[Callback] = [
        ModelCheckpoint(dirpath=out / "ckpt", filename="{step}", save_last=True, **saving)
    ]
    if options.kill_at:
        callbacks.append(
            StopAt("train_batch", options.kill_at[0], batch=options.kill_at[1], client="d", kill=True)
        )
    if options.fail_client:
        callbacks.append(StopAt("train_batch", 0, client=options.fail_client))
    changes: dict = {"devices": options.devices, "max_epochs": options.rounds, "callbacks": callbacks}
    if options.devices > 1:
        changes["strategy"] = ClientShardedStrategy(process_group_backend="gloo")
    changes["enable_checkpointing"] = True
    module = SyncedNet() if options.sync_dist else EmbeddingNet() if options.prototypes else TinyNet()
    strategy: Strategy = FedAvg()
    if options.fedbn:
        strategy = FedBN(batch_norm_names(module))
    elif options.prototypes:
        strategy = PROTOTYPE_STRATEGIES[options.prototypes](**noisy() if options.noisy else {})
    changes["fed"] = federation(strategy=strategy)
    trainer, module = fitted(out, module=module, data=ToyData(sizes), ckpt_path=options.ckpt, **changes)
    torch.save(
        {
            "state": module.state_dict(),
            "global_step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
            "strategy": trainer.federation.strategy.state_dict(),
        },
        out / f"rank{trainer.global_rank}.pt",
    )


class SyncedNet(TinyNet):
    """Logs with sync_dist=True, which reduces over ranks in ordinary DDP."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("fit/loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss


if __name__ == "__main__":
    main()
