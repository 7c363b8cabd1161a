"""One client's local epoch: the stock training epoch of Lightning, its optimization step and its results.

With ``loop`` the only file that touches Lightning's protected loops; tests/federated/test_contract.py names
every protected attribute used here.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.optimization.automatic import ClosureResult, _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from fedsynth.federated.state import State
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
            objective = self.strategy.local_objective(loss, module, self.global_state, result.extra)
            result.closure_loss = objective / shares
        # Else callbacks, which are given it as the step's outputs, would hold the graph.
        result.extra = apply_to_collection(result.extra, Tensor, Tensor.detach)
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
