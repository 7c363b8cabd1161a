"""Federated prototype learning (Tan et al., 2022, FedProto)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.personal import PersonalModels
from fedsynth.federated.strategies.prototype_sharing import PrototypeSharing
from fedsynth.prototypes.prototype_losses import pull_loss

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientUpdate


class FedProto(PrototypeSharing, PersonalModels):
    """Prototypes only: every client keeps its model and is pulled to the global prototypes.

    The loss of a client is that of its task plus λ ‖z - P_y‖² / d, for an embedding of d numbers. No weights are
    averaged. The bank is the pooled mean of the last round.

    Args:
        pull_weight: λ ≥ 0; with 0 the clients train alone.
        **sharing: See ``PrototypeSharing``.

    Raises:
        ConfigError: If λ is negative.
    """

    # fidelity: fedproto-embedding
    def __init__(self, *, pull_weight: float, **sharing: Any) -> None:
        super().__init__(**sharing)
        if not pull_weight >= 0:
            raise ConfigError(f"FedProto.pull_weight must be ≥ 0, got {pull_weight}. Typical: 0.1 to 1.")
        self.pull_weight = pull_weight

    def local_objective(
        self, loss: Tensor, module: nn.Module, global_state: Mapping[str, Tensor], step: Mapping[str, Any]
    ) -> Tensor:
        """The task's loss plus λ times the pull to the global prototype of each record's class."""
        for modality in self.modalities:
            if (aligned := self.aligned(step, modality)) is not None:
                # The published λ goes with the mean over dimensions.   fidelity: fedproto-weight
                scale = self.pull_weight / aligned["embedding"].shape[1]
                loss = loss + scale * pull_loss(**aligned)
        return loss

    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """The bank takes the prototypes; every client keeps its model."""
        self.receive(updates)
        return super().aggregate(global_state, updates)
