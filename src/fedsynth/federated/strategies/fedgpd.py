"""Global prototype distillation (Wu et al., 2024, FedGPD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.strategies.prototype_sharing import PrototypeSharing
from fedsynth.prototypes.prototype_losses import distillation_loss

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientUpdate


class FedGPD(PrototypeSharing, FedAvg):
    """FedAvg, and each embedding learns from the global prototype of its class as from a teacher.

    loss + λ · CE(softmax(P_y / T), softmax(z / T)), the softmax over the coordinates of the embedding.

    Args:
        distillation_weight: λ ≥ 0; with 0 this is FedAvg.
        temperature: T > 0.
        **sharing: See ``PrototypeSharing``.

    Raises:
        ConfigError: If λ is negative or T not positive.
    """

    def __init__(self, *, distillation_weight: float, temperature: float, **sharing: Any) -> None:
        super().__init__(**sharing)
        if not distillation_weight >= 0 or not temperature > 0:
            raise ConfigError(
                "FedGPD needs distillation_weight ≥ 0 and temperature > 0, got "
                f"{distillation_weight} and {temperature}. Typical: 0.05 and 2."
            )
        self.distillation_weight, self.temperature = distillation_weight, temperature

    def local_objective(
        self, loss: Tensor, module: nn.Module, global_state: Mapping[str, Tensor], step: Mapping[str, Any]
    ) -> Tensor:
        """The task's loss plus λ times the distillation from the global prototypes."""
        for modality in self.modalities:
            if (aligned := self.aligned(step, modality)) is not None:
                distilled = distillation_loss(**aligned, temperature=self.temperature)
                loss = loss + self.distillation_weight * distilled
        return loss

    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """The bank takes the prototypes; weights are averaged as by FedAvg."""
        self.receive(updates)
        return super().aggregate(global_state, updates)
