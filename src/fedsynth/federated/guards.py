"""What the federated loop refuses before the first round, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)

from fedsynth.errors import ConfigError
from fedsynth.federated.sharding import ClientShardedStrategy
from fedsynth.federated.strategies.base import Strategy

if TYPE_CHECKING:
    from fedsynth.federated.client import Federation

REFUSED_CALLBACKS = {
    StochasticWeightAveraging: "it would average the clients' local trajectories and adds a round of its own",
    WeightAveraging: "it would average the clients' local trajectories, not the global model",
    LearningRateFinder: "its trial steps do not end at a client's border",
    BatchSizeFinder: "its trial steps do not end at a client's border",
}


def refuse_unsupported(trainer: Any, federation: Federation) -> None:
    """Check a trainer against what a round can do.

    Raises:
        ConfigError: Naming the setting, the value, and what to use instead.
    """
    if trainer.val_check_interval != 1.0 or trainer.check_val_every_n_epoch is None:
        raise ConfigError(
            "trainer.val_check_interval must be 1.0 with check_val_every_n_epoch set, got "
            f"{trainer.val_check_interval!r} and {trainer.check_val_every_n_epoch!r}: within a round there "
            "is no global model to validate. Use check_val_every_n_epoch to validate every n-th round."
        )
    for callback in trainer.callbacks:
        for kind, reason in REFUSED_CALLBACKS.items():
            if isinstance(callback, kind):
                raise ConfigError(
                    f"{kind.__name__} does not work with federated rounds: {reason}. Remove it."
                )
        if type(callback).__name__ == "_LRCallback":  # what Tuner.lr_find adds
            raise ConfigError("Tuner.lr_find does not work with federated rounds: set the learning rate.")
    module = trainer.lightning_module
    changed = type(federation.strategy).local_objective is not Strategy.local_objective
    if module is not None and not module.automatic_optimization and changed:
        raise ConfigError(
            f"{type(federation.strategy).__name__} changes the clients' loss, which a module with "
            "automatic_optimization=False computes itself. Use automatic optimization or FedAvg."
        )
    if trainer.world_size > 1:
        _refuse_dead_locks(trainer)


def _refuse_dead_locks(trainer: Any) -> None:
    if not isinstance(trainer.strategy, ClientShardedStrategy):
        raise ConfigError(
            f"{trainer.world_size} processes need trainer.strategy = fedsynth.federated.sharding."
            f"ClientShardedStrategy, got {type(trainer.strategy).__name__}: they share clients, not batches."
        )
    for callback in trainer.callbacks:
        by_step = isinstance(callback, ModelCheckpoint) and (
            callback._every_n_train_steps > 0
            or callback._train_time_interval is not None
            or callback.save_on_exception
        )
        if by_step or isinstance(callback, OnExceptionCheckpoint):
            raise ConfigError(
                f"{type(callback).__name__} would save in the middle of a round, where the "
                f"{trainer.world_size} processes are at different clients and would wait for each other "
                "forever. Use every_n_epochs; the last finished round is never lost."
            )
