"""Federated optimization with a proximal term (Li et al., 2020, FedProx)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg, but a client also pays for leaving the model it was given: loss + (μ/2) ‖θ - θ_t‖².

    The norm runs over trained parameters; buffers such as BatchNorm's statistics are no part of it.

    Args:
        proximal_weight: μ ≥ 0; with 0 this is FedAvg.

    Raises:
        ConfigError: If μ is negative.
    """

    def __init__(self, *, proximal_weight: float) -> None:
        if not proximal_weight >= 0:
            raise ConfigError(f"FedProx.proximal_weight must be ≥ 0, got {proximal_weight}. Typical: 0.01.")
        self.proximal_weight = proximal_weight

    def local_objective(
        self, loss: Tensor, module: nn.Module, global_state: Mapping[str, Tensor], step: Mapping[str, Any]
    ) -> Tensor:
        """The task's loss plus (μ/2) ‖θ - θ_t‖²."""
        if self.proximal_weight == 0:  # a gradient of zero is not none: AdamW would move unused parameters
            return loss
        return loss + self.proximal_weight / 2 * squared_distance(module, global_state)


def squared_distance(module: nn.Module, state: Mapping[str, Tensor]) -> Tensor:
    """‖θ - θ_t‖² over the module's trainable parameters, differentiable in θ."""
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    moved = [(value - state[name]).square().sum() for name, value in trained.items()]
    return torch.stack(moved).sum()
