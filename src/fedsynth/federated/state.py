"""Model states as plain dictionaries: clone, copy back in place, and average.

A state is what ``module.state_dict()`` returns, restricted to tensors: parameters and persistent buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from fedsynth.errors import ConfigError

State = dict[str, Tensor]


def clone_state(module: nn.Module, device: torch.device | str | None = None) -> State:
    """A detached copy of the module's parameters and persistent buffers.

    Args:
        module: Any module. Entries of its ``state_dict`` that are not tensors (extra state) are left out.
        device: Where the copy lives; by default where each tensor lives now.
    """
    return {
        name: tensor.detach().to(device=device or tensor.device, copy=True)
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, Tensor)
    }


@torch.no_grad()
def copy_into(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Overwrite the module's parameters and buffers in place, so that optimizers keep pointing at them.

    Raises:
        ConfigError: If names or shapes differ between the module and the state.
    """
    own = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor)}
    if own.keys() != state.keys():
        missing, surplus = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        raise ConfigError(
            f"A model state does not fit {type(module).__name__}: missing {missing}, unknown {surplus}. "
            "It comes from a client, a checkpoint or a strategy's aggregate(); all must use the same model."
        )
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise ConfigError(
                f"A model state does not fit {type(module).__name__}: {name} has shape "
                f"{tuple(state[name].shape)}, expected {tuple(tensor.shape)}. Use the same model everywhere."
            )
        tensor.copy_(state[name])


def average_states(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> State:
    """Σ_k w_k θ_k / Σ_k w_k, accumulated in float64 in the order given and rounded once.

    Callers pass clients in canonical order: then the result is the same to the last bit however the
    clients were scheduled. Parameters and floating buffers (BatchNorm running mean and variance) are
    averaged with the same weights; integer and boolean buffers (``num_batches_tracked``) take the maximum.
    The averaged running variance leaves out the variance between the clients' running means.

    A single state is returned as it is, so one client equals plain training bit for bit.

    Raises:
        ConfigError: If there is no state, lengths or names differ, or weights are negative or sum to 0.
    """
    # fidelity: batchnorm-buffers
    if not states or len(states) != len(weights):
        raise ConfigError(
            f"Averaging needs one weight per client, got {len(states)} states and {len(weights)} weights."
        )
    total = float(sum(weights))
    if min(weights) < 0 or not 0 < total < float("inf"):
        raise ConfigError(
            f"Client weights must be non-negative with a positive sum, got {list(weights)}. "
            "They are the clients' record counts; check the partition for empty clients."
        )
    if any(state.keys() != states[0].keys() for state in states):
        raise ConfigError("Client states name different tensors; all clients must train the same model.")
    if len(states) == 1:
        return {name: tensor.clone() for name, tensor in states[0].items()}
    return {name: _average([state[name] for state in states], weights, total) for name in states[0]}


def _average(tensors: list[Tensor], weights: Sequence[float], total: float) -> Tensor:
    if not tensors[0].is_floating_point():
        return reduce(torch.maximum, tensors).clone()
    accumulated = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, weight in zip(tensors, weights, strict=True):
        accumulated += tensor.to(torch.float64) * weight
    return (accumulated / total).to(tensors[0].dtype)
