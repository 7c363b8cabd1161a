"""Federated averaging (McMahan et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedsynth.federated.state import average_states
from fedsynth.federated.strategies.base import Strategy

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientUpdate


class FedAvg(Strategy):
    """θ ← Σ_k n_k θ_k / Σ_k n_k over the cohort, FedDP-PALD Eq. (17); BatchNorm buffers included."""

    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """The record-weighted average of the updates; the old global state does not enter."""
        return average_states(
            [update.state for update in updates], [update.num_records for update in updates]
        )
