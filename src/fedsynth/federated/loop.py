"""Communication rounds as Lightning epochs: the only file that touches Lightning's protected loops.

One epoch is one round: each client of the cohort starts from the global model, makes its local epochs with
the stock training step, and hands in a :class:`ClientUpdate`; the strategy aggregates; the global model is
validated once. A client is atomic: a checkpoint taken while one trains holds the global model, the counters of
that client's start and the finished updates, and a resumed run trains that client again from its first batch.

tests/federated/test_contract.py names every protected attribute used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.optimization.automatic import ClosureResult, _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.loops.utilities import _select_data_fetcher
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from fedsynth.errors import ConfigError
from fedsynth.federated.client import (
    ClientId,
    ClientUpdate,
    Federation,
    random_stream,
    sample_cohort,
)
from fedsynth.federated.guards import refuse_unsupported
from fedsynth.federated.roster import Roster, mean_metrics
from fedsynth.federated.schedules import Schedules
from fedsynth.federated.sharding import ClientShardedStrategy, assign_clients
from fedsynth.federated.state import State, clone_state, copy_into
from fedsynth.federated.strategies.base import Strategy

CLIENTS, AGGREGATED, VALIDATED, ENDED = "clients", "aggregated", "validated", "ended"


class ClientOptimization(_AutomaticOptimization):
    """The stock optimization step, with the strategy's objective and a running mean of the task loss."""

    strategy: Strategy
    global_state: State
    loss_sum: Tensor | float = 0.0
    num_losses: int = 0

    def _training_step(self, kwargs: Any) -> ClosureResult:
        result = super()._training_step(kwargs)
        if result.closure_loss is None:
            return result
        shares = self.trainer.accumulate_grad_batches  # the stock step has divided the loss by this
        self.loss_sum = self.loss_sum + result.loss * shares
        self.num_losses += 1
        if type(self.strategy).local_objective is not Strategy.local_objective:
            loss, module = result.closure_loss * shares, self.trainer.lightning_module
            result.closure_loss = self.strategy.local_objective(loss, module, self.global_state) / shares
        return result


class ClientEpochLoop(_TrainingEpochLoop):
    """One client's local epoch: the stock epoch, never cut short, without validation or collectives."""

    def __init__(self, trainer: Any, min_steps: int | None, max_steps: int) -> None:
        super().__init__(trainer, min_steps=min_steps, max_steps=max_steps)
        self.automatic_optimization: ClientOptimization = ClientOptimization(trainer)
        self.num_batches: int | float | None = None  # of the client in training; None between clients
        self.steps_held_back = 0

    @property
    def done(self) -> bool:
        """Only the client's last batch ends its epoch; should_stop, max_steps and max_time wait for the round."""
        return self._num_ready_batches_reached()

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        iter(data_fetcher)
        data_fetcher._start_profiler = self._on_before_fetch
        data_fetcher._stop_profiler = self._on_after_fetch

    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        self.update_lr_schedulers("step", update_plateau_schedulers=True)
        if not self._should_accumulate():
            self._batches_that_stepped += 1
        self._save_loggers_on_train_batch_end()
        if self.trainer.received_sigterm and self.trainer.world_size == 1:
            raise SIGTERMException  # several ranks agree at the round's end instead

    def on_save_checkpoint(self) -> dict:
        return {"_batches_that_stepped": self._batches_that_stepped + self.steps_held_back}

    def update_lr_schedulers(self, interval: str, update_plateau_schedulers: bool) -> None:
        if interval == "step" or self.num_batches is None:
            super().update_lr_schedulers(interval, update_plateau_schedulers)

    def _num_ready_batches_reached(self) -> bool:
        if self.num_batches is None:
            return True
        return self.batch_progress.is_last_batch or self.batch_progress.current.ready >= self.num_batches

    def _should_check_val_fx(self, data_fetcher: _DataFetcher) -> bool:
        return False  # the global model is validated, once a round

    def _broadcast_sigterm_tensor(self) -> None:
        pass  # a collective per batch would dead-lock ranks with different numbers of batches


class FederatedFitLoop(_FitLoop):
    """Lightning's fit loop with a round in the place of an epoch."""

    def __init__(self, trainer: Any, federation: Federation) -> None:
        stock = trainer.fit_loop
        super().__init__(trainer, min_epochs=stock.min_epochs, max_epochs=stock.max_epochs)
        self.epoch_loop: ClientEpochLoop = ClientEpochLoop(trainer, stock.min_steps, stock.max_steps)
        self.federation = federation
        self.roster = Roster()
        self.phase = CLIENTS
        self.updates: list[ClientUpdate] = []
        self.cohort: tuple[ClientId, ...] = ()
        self._global_state: State = {}
        self._schedules: Schedules | None = None  # learning rates the round started from
        self._counters: dict[str, Any] | None = None  # at the start of the client in training
        self._resumed: dict[str, Any] | None = None
        self._unlogged: set[str] = set()

    # -- the round ---------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Index of the current round, from 0."""
        return self.epoch_progress.current.processed

    @property
    def in_client(self) -> bool:
        """Whether a client is training on this rank."""
        return self._counters is not None

    @property
    def done(self) -> bool:
        return self.phase == CLIENTS and not self.updates and super().done

    def setup_data(self) -> None:
        known = self._combined_loader
        super().setup_data()
        if self._combined_loader is None or self._combined_loader is known:
            return
        self.roster = Roster.from_loader(self._combined_loader, self.federation.num_clients)
        self.max_batches = self.federation.local_epochs * sum(self.roster.num_batches.values())

    def reset(self) -> None:
        refuse_unsupported(self.trainer, self.federation)
        self.trainer.lightning_module.train()
        self._counters = None
        if self._resumed is None:  # drop what an earlier, interrupted fit of this trainer left behind
            self.phase, self.updates = CLIENTS, []
            self.epoch_progress.load_state_dict(self._whole_rounds())
        else:
            self._resume(self._resumed)
        self._resumed = None
        super().reset()

    def on_advance_start(self) -> None:
        self.setup_data()
        clients, federation = self.roster.clients, self.federation
        drawn = sample_cohort(len(clients), federation.participation, federation.seed, self.round)
        self.cohort = tuple(clients[position] for position in drawn)
        self.max_batches = federation.local_epochs * sum(self.roster.num_batches[c] for c in self.cohort)
        super().on_advance_start()

    def advance(self) -> None:
        with self.trainer.profiler.profile("run_training_epoch"):
            if self.phase == CLIENTS:
                self._global_state = clone_state(self.trainer.lightning_module)
                self._schedules = Schedules.take(self.trainer)
                self._train_cohort()
                self._aggregate()
            if self.phase == AGGREGATED:
                self._validate()
                self.phase = VALIDATED

    def on_advance_end(self) -> None:
        super().on_advance_end()
        self.phase = CLIENTS

    def teardown(self) -> None:
        super().teardown()
        for loader in self.roster.loaders.values():
            loader.reset()

    def _train_cohort(self) -> None:
        finished = {update.client for update in self.updates}
        waiting = [client for client in self.cohort if client not in finished]
        strategy, loop = self.trainer.strategy, self.epoch_loop
        if not isinstance(strategy, ClientShardedStrategy):
            for client in waiting:
                self._train_client(client)
        else:
            before, start = list(self.updates), (self.trainer.global_step, loop._batches_that_stepped)
            costs = {client: self.roster.cost(client) for client in waiting}
            error: Exception | None = None
            try:
                for client in assign_clients(costs, strategy.world_size)[strategy.global_rank]:
                    self._train_client(client)
            except Exception as caught:
                error = caught
            trained = strategy.exchange(self.updates[len(before) :], error, self.trainer.received_sigterm)
            self.updates = before + trained
            self._set_steps(
                start[0] + sum(u.steps for u in trained), start[1] + sum(u.batches for u in trained)
            )
        order = {client: position for position, client in enumerate(self.cohort)}
        self.updates.sort(key=lambda update: order[update.client])

    def _train_client(self, client: ClientId) -> None:
        trainer, loop, federation, round_ = self.trainer, self.epoch_loop, self.federation, self.round
        module, optimization = trainer.lightning_module, loop.automatic_optimization
        started = trainer.global_step, loop._batches_that_stepped
        self._counters = loop.state_dict()
        fetcher = _select_data_fetcher(trainer, RunningStage.TRAINING)
        fetcher.setup(self.roster.loaders[client])
        optimization.strategy, optimization.global_state = federation.strategy, self._global_state
        optimization.loss_sum, optimization.num_losses = 0.0, 0
        self._start_schedules()
        module.train()  # Lightning keeps eval mode across fits: BatchNorm would silently stay frozen
        outer, loop._results = loop._results, _ResultCollection(training=True)
        loop.num_batches = self.roster.num_batches[client]
        try:
            with random_stream(federation.seed, "client", round_, client, device=module.device):
                self._call("on_client_start", client)
                for local_epoch in range(federation.local_epochs):
                    epoch = round_ * federation.local_epochs + local_epoch
                    _set_sampler_epoch(self.roster.loaders[client].flattened[0], epoch)
                    loop.run(fetcher)
            metrics = self._client_metrics()
        finally:
            loop.num_batches, loop._results = None, outer
        update = ClientUpdate(
            client=client,
            num_records=self.roster.num_records[client],
            state=clone_state(module, "cpu"),
            metrics=metrics,
            steps=trainer.global_step - started[0],
            batches=loop._batches_that_stepped - started[1],
        )
        copy_into(module, self._global_state)
        self._start_schedules()
        self.updates.append(update)
        self._counters = None
        self._call("on_client_end", update)

    def _client_metrics(self) -> dict[str, float]:
        optimization, results = self.epoch_loop.automatic_optimization, self.epoch_loop._results
        logged = results.metrics(on_step=False)
        metrics = {k: float(v) for k, v in logged["callback"].items() if v.numel() == 1}
        self._unlogged |= logged["callback"].keys() - logged["log"].keys()
        results.reset()
        self.trainer._logger_connector.epoch_end_reached()
        if optimization.num_losses:
            metrics["train_loss"] = float(optimization.loss_sum) / optimization.num_losses
        return metrics

    def _aggregate(self) -> None:
        updates = tuple(self.updates)
        self._call("on_before_aggregate", updates)
        copy_into(
            self.trainer.lightning_module, self.federation.strategy.aggregate(self._global_state, updates)
        )
        self.phase, self.updates, self._global_state = AGGREGATED, [], {}
        connector = self.trainer._logger_connector
        metrics = mean_metrics(updates)
        connector._callback_metrics.update({k: torch.tensor(v) for k, v in metrics.items()})
        logged: dict[str, Any] = {k: v for k, v in metrics.items() if k not in self._unlogged}
        step = self.epoch_loop._batches_that_stepped - 1  # the axis of the round's last training step
        connector.log_metrics({**logged, "epoch": self.trainer.current_epoch}, step=step)
        self._call("on_after_aggregate", updates)

    def _validate(self) -> None:
        trainer, loop = self.trainer, self.epoch_loop
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if not loop._should_check_val_epoch():
            return
        trainer.validating = True
        call._call_lightning_module_hook(trainer, "on_validation_model_zero_grad")
        loop._batches_that_stepped -= 1  # else validation is logged one step late
        loop.steps_held_back = 1
        try:
            device = trainer.lightning_module.device
            with random_stream(self.federation.seed, "validation", self.round, device=device):
                loop.val_loop.run()
        finally:
            loop._batches_that_stepped += 1
            loop.steps_held_back = 0
        trainer.training = True

    def _call(self, hook: str, *args: Any) -> None:
        """Call a federated hook on every callback that defines it, then on the module if it does."""
        trainer = self.trainer
        for callback in trainer.callbacks:
            if (function := getattr(callback, hook, None)) is not None:
                function(trainer, trainer.lightning_module, *args)
        if (function := getattr(trainer.lightning_module, hook, None)) is not None:
            function(*args)

    def _start_schedules(self) -> None:
        assert self._schedules is not None
        self._schedules.restart(self.trainer)

    def _set_steps(self, global_step: int, batches: int) -> None:
        loop = self.epoch_loop
        if self.trainer.lightning_module.automatic_optimization:
            total = loop.automatic_optimization.optim_progress.optimizer.step.total
        else:
            total = loop.manual_optimization.optim_step_progress.total
        total.ready = total.completed = global_step
        loop._batches_that_stepped = batches

    def _iteration_based_training(self) -> bool:
        return False  # max_steps only stops at a round's end; counters always speak of rounds

    # -- checkpoints -------------------------------------------------------------------------------

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """While a checkpoint is written: the global model, and the counters of the current client's start."""
        if self._counters is None:
            yield
            return
        if self.trainer.world_size > 1:
            raise ConfigError(
                "A checkpoint was requested in the middle of a round while clients are spread over "
                f"{self.trainer.world_size} processes; ranks are at different clients then and would wait for "
                "each other forever. Save at the end of a round (for example ModelCheckpoint(every_n_epochs=1))."
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

    def _whole_rounds(self) -> dict[str, Any]:
        """Epoch counters as if no round were under way; the rest of a round's progress is in the phase."""
        state = self.epoch_progress.state_dict()
        return {name: dict.fromkeys(part, part["processed"]) for name, part in state.items()}

    def state_dict(self, destination: dict | None = None, prefix: str = "") -> dict:
        state = super().state_dict(destination, prefix)
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
                f"The checkpoint was written in the middle of a round with federation "
                f"{state_dict['federation']}, but this run has {self._identity()}. Resume with the same federation."
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
