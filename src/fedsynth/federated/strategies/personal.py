"""Clients with models of their own: no weights are averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedsynth.federated.state import State
from fedsynth.federated.strategies.base import Strategy

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientId, ClientUpdate


class PersonalModels(Strategy):
    """Every client goes on with the model it ended its last round with; all start from the same one.

    There is no global model: ``aggregate`` hands the initial one back, and whoever validates or predicts asks
    ``client_models``. Base of the strategies that share no weights.
    """

    def __init__(self) -> None:
        self.kept: dict[ClientId, State] = {}

    def client_state(self, global_state: Mapping[str, Tensor], client: ClientId) -> Mapping[str, Tensor]:
        """The client's own model, once it has one."""
        return self.kept.get(client, global_state)

    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """Every client's model is remembered as its own; the initial model stays."""
        for update in updates:
            self.kept[update.client] = dict(update.state)
        return dict(global_state)

    def client_models(self) -> Mapping[ClientId, Mapping[str, Tensor]]:
        """What each client that ever trained holds now."""
        return self.kept

    def sent_up(self, update: ClientUpdate) -> list[Tensor]:
        """The message alone."""
        return list(update.message.values())

    def sent_down(self, global_state: Mapping[str, Tensor]) -> list[Tensor]:
        """Nothing of a model."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What each client keeps."""
        return {"kept": {client: dict(state) for client, state in self.kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        self.kept = {client: dict(kept) for client, kept in state["kept"].items()}
