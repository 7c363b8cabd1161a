"""What every trained stage shares: a Trainer from the context, checkpoints in scratch, resume, a history."""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from fedsynth.errors import ArtifactError
from fedsynth.pipeline.stage import StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.progress import epoch_progress

log = logging.getLogger(__name__)
CHECKPOINT = "last.ckpt"
# Keys of the trainer config that Lightning does not know.
OURS = ("num_threads", "compile")


class History(Callback):
    """Every logged metric once per epoch; part of the checkpoint, so a resumed run has one unbroken curve."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows = [row for row in self.rows if row["epoch"] != trainer.current_epoch]
        self.rows.append({"epoch": trainer.current_epoch, **metrics})

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]

    def write(self, folder: Path) -> None:
        """Write ``history.json``."""
        (folder / "history.json").write_text(json.dumps(self.rows) + "\n")


class EpochMean:
    """Mean of a loss over an epoch, logged once: ``self.log`` in each step costs small networks a quarter."""

    def __init__(self) -> None:
        self.total: torch.Tensor | float = 0.0
        self.count = 0

    def add(self, loss: torch.Tensor, num: int) -> None:
        """Count the mean loss of ``num`` records."""
        self.total = self.total + loss.detach() * num
        self.count += num

    def log(self, module: L.LightningModule, name: str) -> None:
        """At the last batch, log the mean (over ranks too) and start anew; call it after every batch.

        Not at the epoch's end: there callbacks come before the module and would see the epoch before.
        """
        if module.trainer.is_last_batch:
            mean = self.total / max(1, self.count)
            module.log(name, mean, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)
            self.total, self.count = 0.0, 0


class BestWeights(Callback):
    """Keeps the network of the epoch with the lowest monitored value; part of the checkpoint.

    Args:
        network: Whose weights are kept.
        monitor: Name of a validation metric; NaN never counts as best.
    """

    def __init__(self, network: nn.Module, monitor: str) -> None:
        self.network, self.monitor = network, monitor
        self.value, self.epoch = float("inf"), -1
        self.weights: dict[str, torch.Tensor] = {}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        value = float(trainer.callback_metrics[self.monitor])
        if not trainer.sanity_checking and value < self.value:
            self.value, self.epoch = value, trainer.current_epoch
            state = self.network.state_dict()
            self.weights = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def restore(self) -> None:
        """Put the best weights back; leaves the last ones if nothing was ever validated."""
        if self.weights:
            self.network.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "epoch": self.epoch, "weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value, self.epoch, self.weights = (state_dict[name] for name in ("value", "epoch", "weights"))


class KeyGuard(Callback):
    """Writes the artifact's key into each checkpoint."""

    def __init__(self, key: str) -> None:
        self.key = key

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["fedsynth_key"] = self.key


class EpochStream(Callback):
    """Seeds torch's global stream, which drives dropout, at the start of each epoch.

    A function of (seed, epoch, rank): a run that goes on from a checkpoint draws what an uninterrupted one
    would have drawn, whatever was drawn in between.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.manual_seed(derive_seed(self.seed, "epoch", trainer.current_epoch, trainer.global_rank))


def fit(
    module: L.LightningModule,
    datamodule: L.LightningDataModule,
    context: StageContext,
    *,
    network: nn.Module,
    trainer_class: type[L.Trainer] = L.Trainer,
    trainer_arguments: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint_every: int = 1,
    name: str = CHECKPOINT,
) -> History:
    """Train, going on from this stage's own last checkpoint if a killed run left one.

    Args:
        module: Trained in place.
        datamodule: Shards its batches over ranks itself.
        context: Of the stage; its ``trainer`` holds the Trainer's arguments.
        network: The part to compile when ``trainer.compile`` is set.
        trainer_class: ``lightning.Trainer`` or a subclass.
        trainer_arguments: More arguments, stronger than the context's.
        callbacks: Besides checkpoint, history and progress.
        checkpoint_every: In epochs; small fast stages need not write each epoch.
        name: File name of the checkpoint, for stages that train several modules.

    Raises:
        ArtifactError: If the checkpoint found belongs to another configuration.
    """
    history = History()
    folder = context.scratch / "checkpoints"
    config = {key: value for key, value in context.trainer.items() if key not in OURS}
    if context.trainer.get("compile"):
        network.compile()
    if overfit := config.pop("overfit_batches", None):
        _freeze_order(datamodule)
        config |= {"limit_train_batches": overfit, "limit_val_batches": overfit}
    fast = bool(config.get("fast_dev_run"))
    checkpoint = ModelCheckpoint(
        dirpath=folder,
        filename=Path(name).stem,
        enable_version_counter=False,
        every_n_epochs=checkpoint_every,
        save_on_train_epoch_end=True,
    )
    own = [history, KeyGuard(context.key), *epoch_progress(context, trainer_class), *callbacks]
    with context.loggers(Path(name).stem) as loggers:
        trainer = trainer_class(
            **{
                "default_root_dir": context.scratch,
                "logger": False if fast else loggers or False,
                "callbacks": own if fast else [*own, checkpoint],
                "enable_checkpointing": not fast,
                "enable_model_summary": False,
                "enable_progress_bar": False,
                "use_distributed_sampler": False,
                "log_every_n_steps": 1,
                "num_sanity_val_steps": 0,
                **config,
                **placement(context, config),
                **(trainer_arguments or {}),
            }
        )
        # weights_only: checkpoints hold tensors and plain values, never code.
        trainer.fit(module, datamodule, ckpt_path=_resumable(folder / name, context), weights_only=True)
        if trainer.received_sigterm:  # in the last step, after which Lightning does not look any more
            raise SIGTERMException
    # Evaluation follows, on the CPU: to compile for it anew would cost minutes and need a C++ compiler.
    network._compiled_call_impl = None
    return history


def _freeze_order(datamodule: L.LightningDataModule) -> None:
    """Let every epoch have the batches of the first, as ``overfit_batches`` promises.

    Lightning would put in a sampler that yields records; ours yields whole batches.
    """
    make = datamodule.train_dataloader

    def frozen() -> Any:
        loader = make()
        for one in loader.flattened if isinstance(loader, CombinedLoader) else [loader]:
            one.sampler.set_epoch = lambda epoch: None
        return loader

    datamodule.train_dataloader = frozen  # type: ignore[method-assign]


def placement(context: StageContext, config: Mapping[str, Any]) -> dict[str, Any]:
    """Devices and strategy for the processes that torchrun started; one device without it."""
    if context.world_size == 1:
        return {"devices": 1, "strategy": "auto", "num_nodes": 1}
    local = int(os.environ.get("LOCAL_WORLD_SIZE", context.world_size))
    return {
        "devices": local,
        "num_nodes": context.world_size // local,
        "strategy": _ddp() if config.get("strategy") == "ddp" else config["strategy"],
    }


def _ddp() -> DDPStrategy:
    """DDP whose forward pass holds no collective: evaluation shards differ in size."""
    # torch 2.14 renamed the option and warns of the old name; earlier ones know only that.
    known = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    # One-channel images make gradients of an order that DDP copies; it says so once for each process.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    options: dict[str, Any] = {name: False}
    return DDPStrategy(**options)


def _resumable(path: Path, context: StageContext) -> Path | None:
    """The checkpoint to go on from, if it is whole and of this very configuration."""
    if not path.is_file():
        return None
    try:
        found = dict(torch.load(path, map_location="cpu", weights_only=True))
    except (
        OSError,
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
        ValueError,
        KeyError,
        TypeError,
    ) as error:
        log.warning(
            "%s cannot be read (%s): stages.%s starts again.", path, type(error).__name__, context.name
        )
        return None
    if found.get("fedsynth_key") != context.key:
        raise ArtifactError(
            f"{path} belongs to another configuration of stages.{context.name} "
            f"(key {str(found.get('fedsynth_key'))[:12]}, wanted {context.key[:12]}). "
            "Delete it to start this stage again."
        )
    log.info("stages.%s goes on from epoch %s.", context.name, found.get("epoch"))
    return path


def batch_share(batch_size: int, context: StageContext) -> int:
    """Records per step of this process, so that all processes together take ``batch_size`` of them.

    The number of processes is no part of an artifact's key: the steps of an epoch must not depend on it.
    Rounded up; two at least, for BatchNorm.
    """
    return max(min(2, batch_size), -(-batch_size // context.world_size))


def seed_everything(seed: int) -> None:
    """Seed torch's global stream, which initializes layers."""
    torch.manual_seed(seed)
