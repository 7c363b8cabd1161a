"""What the server held and the clients sent in the round whose weights are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from fedsynth.federated.client import ClientId, ClientUpdate
from fedsynth.federated.state import State
from fedsynth.federated.strategies.base import Strategy
from fedsynth.stages.training import BestWeights


# fidelity: round-choice
class ChosenRound(Callback):
    """Keeps the strategy's state and the clients' models of the best round; part of the checkpoint.

    Without any best round (nothing was validated, or no loss was a number) it is the last one, as for the weights.

    Args:
        best: Says which round is the best, and comes before this callback; None keeps the last one.
        strategy: Whose state it is.
        keep_models: Keep what every client uploaded as well. Strategies with personal models hold these in
            their state already.
    """

    def __init__(self, best: BestWeights | None, strategy: Strategy, *, keep_models: bool) -> None:
        self.best, self.strategy, self.keep_models = best, strategy, keep_models
        self.sent: dict[ClientId, State] = {}  # of the round under way
        self.kept: dict[str, Any] = {}
        self.kept_models: dict[ClientId, State] = {}

    def on_before_aggregate(
        self, trainer: L.Trainer, pl_module: L.LightningModule, updates: Sequence[ClientUpdate]
    ) -> None:
        if self.keep_models:
            self.sent = {update.client: update.state for update in updates}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or self.best is None or self.best.epoch != trainer.current_epoch:
            return
        self.kept, self.kept_models = self.strategy.state_dict(), self.sent

    def server(self) -> Mapping[str, Any]:
        """The strategy's state in the chosen round."""
        return self.kept or self.strategy.state_dict()

    def models(self) -> Mapping[ClientId, State]:
        """Personal models, or the uploaded ones, of the chosen round; {} if neither was kept."""
        return self.server().get("kept") or self.kept_models or self.sent

    def state_dict(self) -> dict[str, Any]:
        return {"sent": self.sent, "kept": self.kept, "kept_models": self.kept_models}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sent, self.kept, self.kept_models = (
            state_dict[name] for name in ("sent", "kept", "kept_models")
        )
