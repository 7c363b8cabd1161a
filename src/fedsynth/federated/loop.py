"""Communication rounds as Lightning epochs: the only file that touches Lightning's protected loops.

One epoch is one round: each client of the cohort starts from the global model, makes its local epochs with
the stock training step, and hands in a :class:`ClientUpdate`; the strategy aggregates; the global model is
validated once.

tests/federated/test_contract.py names every protected attribute used here.
"""

from __future__ import annotations

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

from fedsynth.federated.checkpoints import AGGREGATED, CLIENTS, VALIDATED, CheckpointedRounds
from fedsynth.federated.client import ClientId, ClientUpdate, Federation, random_stream, sample_cohort
from fedsynth.federated.guards import refuse_unsupported
from fedsynth.federated.hooks import call_hook
from fedsynth.federated.roster import Roster, mean_metrics
from fedsynth.federated.schedules import Schedules
from fedsynth.federated.sharding import ClientShardedStrategy, assign_clients
from fedsynth.federated.state import State, clone_state, copy_into
from fedsynth.federated.strategies.base import Strategy


class ClientResults(_ResultCollection):
    """What a client logs. Lightning moves a metric to its device at every ``log``: once is enough."""

    def __setitem__(self, key: str, metric: Any) -> None:
        move, placed = metric.to, None

        def to(device: torch.device) -> Any:
            nonlocal placed
            if device != placed:
                placed = device
                move(device)
            return metric

        metric.to = to
        super().__setitem__(key, metric)


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
        assert result.loss is not None
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
        """Only its last batch ends a client's epoch; should_stop and max_steps wait for the round's end."""
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


class FederatedFitLoop(CheckpointedRounds, _FitLoop):
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
        self._schedules: Schedules | None = None
        self._counters: dict[str, Any] | None = None
        self._resumed: dict[str, Any] | None = None
        self._unlogged: set[str] = set()

    @property
    def round(self) -> int:
        """Index of the current round, from 0."""
        return self.epoch_progress.current.processed

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
            self._set_steps(*start, trained)
        self.updates.sort(key=lambda update: self.cohort.index(update.client))

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
        outer, loop._results = loop._results, ClientResults(training=True)
        loop.num_batches = self.roster.num_batches[client]
        try:
            with random_stream(federation.seed, "client", round_, client, device=module.device):
                call_hook(trainer, "on_client_start", client)
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
        call_hook(trainer, "on_client_end", update)

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
        trainer, updates = self.trainer, tuple(self.updates)
        call_hook(trainer, "on_before_aggregate", updates)
        state = self.federation.strategy.aggregate(self._global_state, updates)
        self.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        copy_into(trainer.lightning_module, state)
        self.phase, self.updates, self._global_state = AGGREGATED, [], {}
        connector = trainer._logger_connector
        metrics = mean_metrics(updates)
        connector._callback_metrics.update({k: torch.tensor(v) for k, v in metrics.items()})
        logged: dict[str, Any] = {k: v for k, v in metrics.items() if k not in self._unlogged}
        step = self.epoch_loop._batches_that_stepped - 1  # the axis of the round's last training step
        connector.log_metrics({**logged, "epoch": trainer.current_epoch}, step=step)
        call_hook(trainer, "on_after_aggregate", updates)

    def _validate(self) -> None:
        trainer, loop = self.trainer, self.epoch_loop
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

    def _iteration_based_training(self) -> bool:
        return False  # max_steps only stops at a round's end; counters always speak of rounds
