"""The server's rule: what a strategy may change in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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

    def local_objective(
        self, loss: Tensor, module: nn.Module, global_state: Mapping[str, Tensor], step: Mapping[str, Any]
    ) -> Tensor:
        """The loss a client minimizes, from the loss its ``training_step`` returned. Here: unchanged.

        Args:
            loss: What ``training_step`` returned, before gradient accumulation divides it.
            module: The client's model while it trains.
            global_state: The model the round started from, on the module's device; not to be modified.
            step: What else ``training_step`` returned, if it returned a dictionary, with its graph: strategies
                that align embeddings read ``embeddings``, ``label`` and ``present`` from it.
        """
        return loss

    def client_message(
        self, module: nn.Module, batches: Iterable[Any], *, client: ClientId, round: int
    ) -> dict[str, Tensor]:
        """What a client sends beside its model, computed where its records are. Here: nothing.

        Args:
            module: The client's model after its local epochs, in evaluation mode, without gradients.
            batches: The client's training batches, every record once, on the module's device.
            client: Who sends.
            round: The current round, from 0.
        """
        return {}

    @abstractmethod
    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """The next global state.

        Args:
            global_state: The model the round started from.
            updates: One per client of the cohort, in canonical order, at least one, states on the CPU.
        """

    def client_models(self) -> Mapping[ClientId, Mapping[str, Tensor]]:
        """The clients' own models, where they take the place of a global one. Here: there is a global one."""
        return {}

    def sent_up(self, update: ClientUpdate) -> list[Tensor]:
        """What a client transmits to the server in a round. Here: its whole model, and its message."""
        return [*update.state.values(), *update.message.values()]

    def sent_down(self, global_state: Mapping[str, Tensor]) -> list[Tensor]:
        """What the server transmits to a client in a round. Here: the global model."""
        return list(global_state.values())

    def state_dict(self) -> dict[str, Any]:
        """Server state to checkpoint (momentum, prototypes): tensors and plain types only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - stateless by default
        """Take back what ``state_dict`` returned."""
