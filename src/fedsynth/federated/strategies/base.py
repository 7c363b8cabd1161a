"""The server's rule: what a strategy may change in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientId, ClientUpdate


class Strategy(ABC):
    """Base of all server strategies. States and losses in and out; no Lightning.

    A strategy must not keep anything in itself but what ``state_dict`` returns, and must not draw from
    global random state: then a resumed run equals an uninterrupted one.
    """

    def client_state(self, global_state: Mapping[str, Tensor], client: ClientId) -> Mapping[str, Tensor]:
        """The model a client starts its local epochs from. Here: the global model.

        Args:
            global_state: The model the round started from; not to be modified.
            client: Whose turn it is. Before it, other clients may have trained, in this process or another.
        """
        return global_state

    def local_objective(self, loss: Tensor, module: nn.Module, global_state: Mapping[str, Tensor]) -> Tensor:
        """The loss a client minimizes, from the loss its ``training_step`` returned. Here: unchanged.

        Args:
            loss: What ``training_step`` returned, before gradient accumulation divides it.
            module: The client's model while it trains.
            global_state: The model the round started from, on the module's device; not to be modified.
        """
        return loss

    @abstractmethod
    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """The next global state.

        Args:
            global_state: The model the round started from.
            updates: One per client of the cohort, in canonical order, at least one, states on the CPU.
        """

    def state_dict(self) -> dict[str, Any]:
        """Server state to checkpoint (momentum, prototypes): tensors and plain types only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - stateless by default
        """Take back what ``state_dict`` returned."""
