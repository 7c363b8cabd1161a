"""Communication rounds as Lightning epochs; with ``client_epoch`` the only file to touch Lightning's loops.

One epoch is one round: each client of the cohort starts from the model the strategy gives it, makes its
local epochs with the stock training step, and hands in a :class:`ClientUpdate`; the strategy aggregates; the
global model is validated once.

tests/federated/test_contract.py names every protected attribute used here.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.utilities import _select_data_fetcher
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import RunningStage

from fedsynth.federated.checkpoints import AGGREGATED, CLIENTS, VALIDATED, CheckpointedRounds
from fedsynth.federated.client import ClientId, ClientUpdate, Federation, random_stream, sample_cohort
from fedsynth.federated.client_epoch import ClientEpochLoop, ClientResults
from fedsynth.federated.guards import refuse_unsupported
from fedsynth.federated.hooks import call_hook
from fedsynth.federated.messages import client_message, round_traffic
from fedsynth.federated.roster import Roster, mean_metrics
from fedsynth.federated.schedules import Schedules
from fedsynth.federated.sharding import ClientShardedStrategy, assign_clients
from fedsynth.federated.state import State, clone_state, copy_into


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
        copy_into(module, federation.strategy.client_state(self._global_state, client))
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
                message = client_message(trainer, federation.strategy, self.roster, client, round_)
            metrics = self._client_metrics()
        finally:
            loop.num_batches, loop._results = None, outer
        update = ClientUpdate(
            client=client,
            num_records=self.roster.num_records[client],
            state=clone_state(module, "cpu"),
            metrics=metrics,
            message=message,
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
        traffic = round_traffic(self.federation.strategy, self._global_state, updates)
        state = self.federation.strategy.aggregate(self._global_state, updates)
        self.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        copy_into(trainer.lightning_module, state)
        self.phase, self.updates, self._global_state = AGGREGATED, [], {}
        connector = trainer._logger_connector
        metrics = mean_metrics(updates) | traffic
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
