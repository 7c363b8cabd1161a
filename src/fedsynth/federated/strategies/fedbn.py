"""Federated averaging with batch normalization kept by each client (Li et al., 2021, FedBN)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsynth.errors import ConfigError
from fedsynth.federated.state import State
from fedsynth.federated.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientId, ClientUpdate


class FedBN(FedAvg):
    """FedAvg, but a client goes on with the batch normalization it ended its last local epochs with.

    Parameters (γ, β) and statistics (running mean and variance, counter) of every BatchNorm layer stay with
    the client between rounds; all the rest starts from the global average. A client that never took part
    starts from the global model altogether. LayerNorm and GroupNorm, which hold no statistics of a client's
    data, are averaged.

    The paper has no global model for new data. Here the server's model holds the record-weighted average of
    the clients' normalization, exactly as under FedAvg, so that it can be validated and encode test records;
    no client trains with it. Normalization therefore still leaves the clients: this is about heterogeneous
    data, not about privacy.

    Args:
        names: State names of the normalization; see ``batch_norm_names``.

    Raises:
        ConfigError: If there are none, or the model does not know one of them: FedBN would be FedAvg.
    """

    # fidelity: fedbn-global-model
    def __init__(self, names: Collection[str]) -> None:
        if not names:
            raise ConfigError(
                "FedBN keeps batch normalization, but this model has none, so it would be FedAvg. "
                "Use model.normalization=batch, or federated=fedavg."
            )
        self.names = tuple(names)
        self.kept: dict[ClientId, State] = {}

    def client_state(self, global_state: Mapping[str, Tensor], client: ClientId) -> Mapping[str, Tensor]:
        """The global model with the client's own normalization, once it has one."""
        return {**global_state, **self.kept.get(client, {})}

    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """The record-weighted average of everything; each client's normalization is remembered as its own."""
        unknown = [name for name in self.names if name not in global_state]
        if unknown:
            raise ConfigError(
                f"FedBN was told to keep {unknown[0]!r}, which is no part of the model. Take the names from "
                "batch_norm_names(module) of the module that is trained."
            )
        for update in updates:
            self.kept[update.client] = {name: update.state[name] for name in self.names}
        return super().aggregate(global_state, updates)

    def state_dict(self) -> dict[str, Any]:
        """What each client keeps."""
        return {"kept": {client: dict(state) for client, state in self.kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        self.kept = {client: dict(kept) for client, kept in state["kept"].items()}


def batch_norm_names(module: nn.Module) -> tuple[str, ...]:
    """State names of the parameters and statistics of every BatchNorm layer, in the module's order."""
    layers = {name for name, part in module.named_modules() if isinstance(part, _BatchNorm)}
    return tuple(name for name in module.state_dict() if name.rpartition(".")[0] in layers)
