"""What clients and server transmit in a round beside models, and how many bytes all of it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fedsynth.federated.client import ClientId, ClientUpdate
from fedsynth.federated.roster import Roster
from fedsynth.federated.state import State
from fedsynth.federated.strategies.base import Strategy


def client_message(trainer: Any, strategy: Strategy, roster: Roster, client: ClientId, round: int) -> State:
    """What the strategy makes a client compute after its local epochs; the module holds the client's model.

    Evaluation mode, no gradients, one pass over the client's training batches within the Trainer's batch
    limit. The module is in training mode again afterwards. Costs nothing for strategies that send nothing.
    """
    if type(strategy).client_message is Strategy.client_message:
        return {}
    module = trainer.lightning_module
    module.eval()
    try:
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            batches = _batches(trainer, roster, client)
            sent = strategy.client_message(module, batches, client=client, round=round)
    finally:
        module.train()
    return {name: tensor.detach().cpu() for name, tensor in sent.items()}


def _batches(trainer: Any, roster: Roster, client: ClientId) -> Iterator[Any]:
    """The batches as ``training_step`` gets them: converted, passed through the transfer hooks, on the device."""
    limit = roster.num_batches[client]
    loader = roster.loaders[client].flattened[0]
    module, data = trainer.lightning_module, trainer.datamodule
    # Lightning lets the data module's hook win over the module's.
    hooks = data if data is not None and is_overridden("on_before_batch_transfer", data) else module
    for batch in islice(loader, None if limit == float("inf") else int(limit)):
        ready = hooks.on_before_batch_transfer(trainer.precision_plugin.convert_input(batch), 0)
        yield trainer.strategy.batch_to_device(ready, module.device)


def round_traffic(
    strategy: Strategy, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
) -> dict[str, float]:
    """Bytes that one client sends and receives in a round, means over the cohort, uncompressed.

    ``traffic/bytes_up`` and ``traffic/bytes_down``. Counts the tensors themselves, no framing.
    """
    up = sum(num_bytes(strategy.sent_up(update)) for update in updates) / len(updates)
    return {"traffic/bytes_up": up, "traffic/bytes_down": float(num_bytes(strategy.sent_down(global_state)))}


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Size of the tensors' values."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
