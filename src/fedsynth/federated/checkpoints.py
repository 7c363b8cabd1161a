"""Checkpoints of federated rounds: what they hold, and how a loop is rewound to the start of a client.

A checkpoint never holds half a client: taken while one trains, it has the global model, the counters of that
client's start and the finished clients' updates. Epoch counters are saved as whole rounds; how far the open
round had come is the phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedsynth.errors import ConfigError
from fedsynth.federated.client import ClientUpdate, Federation
from fedsynth.federated.schedules import Schedules
from fedsynth.federated.state import State, clone_state, copy_into

CLIENTS, AGGREGATED, VALIDATED, ENDED = "clients", "aggregated", "validated", "ended"


class CheckpointedRounds:
    """The checkpoint half of ``FederatedFitLoop``; stands before Lightning's fit loop in its bases."""

    trainer: Any
    epoch_loop: Any
    epoch_progress: Any
    federation: Federation
    phase: str
    updates: list[ClientUpdate]
    _global_state: State
    _schedules: Schedules | None  # learning rates the round started from
    _counters: dict[str, Any] | None  # of the start of the client in training; None between clients
    _resumed: dict[str, Any] | None

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """While a checkpoint is written: the global model, and the counters of the current client's start."""
        if self._counters is None:
            yield
            return
        if self.trainer.world_size > 1:
            raise ConfigError(
                "A checkpoint was requested in the middle of a round while clients are spread over "
                f"{self.trainer.world_size} processes; they are at different clients then and would wait for "
                "each other forever. Save at the end of a round, e.g. with ModelCheckpoint(every_n_epochs=1)."
            )
        module, counters, live = self.trainer.lightning_module, self._counters, self.epoch_loop.state_dict()
        state = clone_state(module)
        assert self._schedules is not None
        with self._schedules.swapped_in(self.trainer):
            try:
                copy_into(module, self._global_state)
                self._load_counters(counters)
                yield
            finally:
                copy_into(module, state)
                self._load_counters(live)

    def _load_counters(self, counters: dict[str, Any]) -> None:
        loop = self.epoch_loop
        loop._load_from_state_dict(counters, "")
        for name in ("automatic_optimization", "manual_optimization", "val_loop"):
            getattr(loop, name)._load_from_state_dict(counters, f"{name}.")

    def _start_schedules(self) -> None:
        assert self._schedules is not None
        self._schedules.restart(self.trainer)

    def _set_steps(self, global_step: int, batches: int, updates: list[ClientUpdate]) -> None:
        """Count the steps of clients that other ranks have trained, on top of the round's start."""
        loop = self.epoch_loop
        if self.trainer.lightning_module.automatic_optimization:
            total = loop.automatic_optimization.optim_progress.optimizer.step.total
        else:
            total = loop.manual_optimization.optim_step_progress.total
        total.ready = total.completed = global_step + sum(update.steps for update in updates)
        loop._batches_that_stepped = batches + sum(update.batches for update in updates)

    def _whole_rounds(self) -> dict[str, Any]:
        """Epoch counters as if no round were under way; the rest of a round's progress is in the phase."""
        state = self.epoch_progress.state_dict()
        return {name: dict.fromkeys(part, part["processed"]) for name, part in state.items()}

    def state_dict(self, destination: dict | None = None, prefix: str = "") -> dict:
        state: dict = super().state_dict(destination, prefix)  # type: ignore[misc]
        state[f"{prefix}epoch_progress"] = self._whole_rounds()
        return state

    def on_save_checkpoint(self) -> dict:
        current, trainer, phase = self.epoch_progress.current, self.trainer, self.phase
        if current.processed > current.completed:
            phase = ENDED
        elif phase == AGGREGATED and trainer.lightning_module._current_fx_name == "on_validation_end":
            phase = VALIDATED
        return {
            "phase": phase,
            "updates": [dict(vars(update)) for update in self.updates],
            "strategy": self.federation.strategy.state_dict(),
            "metrics": {k: float(v) for k, v in trainer.callback_metrics.items() if v.numel() == 1},
            "federation": self._identity(),
        }

    def on_load_checkpoint(self, state_dict: dict) -> None:
        if "phase" not in state_dict:
            raise ConfigError(
                "The checkpoint was not written by a FederatedTrainer, so it says nothing about rounds and "
                "clients. Load its weights into the module instead of passing it as ckpt_path."
            )
        self._resumed = state_dict
        self.phase = CLIENTS if state_dict["phase"] == ENDED else state_dict["phase"]
        self.updates = [ClientUpdate(**update) for update in state_dict["updates"]]
        self.federation.strategy.load_state_dict(state_dict["strategy"])
        if self.updates and state_dict["federation"] != self._identity():
            raise ConfigError(
                f"The checkpoint was written within a round of federation {state_dict['federation']}, but "
                f"this run has {self._identity()}. Resume with the same federation."
            )

    def _identity(self) -> dict[str, Any]:
        federation = self.federation
        return {
            "local_epochs": federation.local_epochs,
            "participation": federation.participation,
            "seed": federation.seed,
            "strategy": type(federation.strategy).__name__,
        }

    def _resume(self, state_dict: dict) -> None:
        metrics = {name: torch.tensor(value) for name, value in state_dict["metrics"].items()}
        self.trainer._logger_connector._callback_metrics.update(metrics)
        if state_dict["phase"] == ENDED:  # the checkpoint precedes the round's plateau schedulers
            current = self.epoch_progress.current
            current.completed -= 1
            self.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
            current.completed += 1
