"""Federated multimodal prototype alignment (FedMPA): alignment on the clients, similarity on the server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedsynth.errors import ConfigError
from fedsynth.federated.state import State, average_states
from fedsynth.federated.strategies.prototype_sharing import PrototypeSharing
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.prototypes.prototype_losses import pull_loss, repulsion_loss
from fedsynth.prototypes.similarity_weights import mean_similarity, similarity_weights

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientUpdate


class FedMPA(PrototypeSharing):
    """Modality-specific prototypes pull and repel embeddings; clients near the bank weigh more; server momentum.

    On a client: loss + Σ_m λ_m L_pull^m + Σ_m β_m L_rep^m, against the bank the round started with; in the
    first round there is none, so it is the task's loss alone. On the server: weights from the cosine
    similarity of each client's prototypes with the bank before it takes them, then momentum on the parameters.
    Each part can be switched off: weights of 0, ``aggregation="records"``, ``server_momentum=0``,
    ``bank_momentum=0``.

    Args:
        parameters: State names of the trained parameters, ``parameter_names(module)``: momentum moves these,
            buffers are averaged plainly.
        pull_weights: λ_m by modality.
        repulsion_weights: β_m by modality.
        repulsion: Form of the repulsion.
        repulsion_margin: μ of the hinge, on vectors of length 1.
        aggregation: ``"similarity"`` (the paper's) or ``"records"`` (FedAvg's weights).
        sensitivity: δ.
        softplus: Whether δ multiplies the softplus from outside or its argument.
        server_momentum: In [0, 1).
        server_learning_rate: η > 0 of the momentum step.
        **sharing: See ``PrototypeSharing``.

    Raises:
        ConfigError: For a modality without weights, an unknown aggregation, or an impossible number.
    """

    def __init__(
        self,
        *,
        parameters: Collection[str],
        pull_weights: Mapping[str, float],
        repulsion_weights: Mapping[str, float],
        repulsion: Literal["hinge", "inverse", "gaussian"],
        repulsion_margin: float,
        aggregation: Literal["similarity", "records"],
        sensitivity: float,
        softplus: Literal["outside", "inside"],
        server_momentum: float,
        server_learning_rate: float,
        **sharing: Any,
    ) -> None:
        super().__init__(**sharing)
        self.parameters = frozenset(parameters)
        self.pull_weights, self.repulsion_weights = dict(pull_weights), dict(repulsion_weights)
        self.repulsion, self.repulsion_margin = repulsion, repulsion_margin
        self.aggregation, self.sensitivity, self.softplus = aggregation, sensitivity, softplus
        self.server_momentum, self.server_learning_rate = server_momentum, server_learning_rate
        self.velocity: State = {}
        self._check()

    def _check(self) -> None:
        for name in ("pull_weights", "repulsion_weights"):
            weights = getattr(self, name)
            if weights.keys() != set(self.modalities) or not all(weight >= 0 for weight in weights.values()):
                raise ConfigError(
                    f"FedMPA.{name} must give each of {', '.join(self.modalities)} a number ≥ 0, got {weights}. "
                    "The paper's are 0.07, 0.07 and 0.08."
                )
        if self.aggregation not in ("similarity", "records"):
            raise ConfigError(
                f"FedMPA.aggregation must be similarity or records, got {self.aggregation!r}. The paper's is similarity."
            )
        if not 0 <= self.server_momentum < 1 or not self.server_learning_rate > 0:
            raise ConfigError(
                "FedMPA needs server_momentum in [0, 1) and server_learning_rate > 0, got "
                f"{self.server_momentum} and {self.server_learning_rate}. The paper's are 0.9 and 1."
            )

    def local_objective(
        self, loss: Tensor, module: nn.Module, global_state: Mapping[str, Tensor], step: Mapping[str, Any]
    ) -> Tensor:
        """The task's loss, plus pull and repulsion of every modality that has a weight."""
        for modality in self.modalities:
            pull, repel = self.pull_weights[modality], self.repulsion_weights[modality]
            if not (pull or repel) or (aligned := self.aligned(step, modality)) is None:
                continue
            if pull:
                loss = loss + pull * pull_loss(**aligned)
            if repel:
                loss = loss + repel * repulsion_loss(
                    **aligned, form=self.repulsion, margin=self.repulsion_margin
                )
        return loss

    def aggregate(
        self, global_state: Mapping[str, Tensor], updates: Sequence[ClientUpdate]
    ) -> dict[str, Tensor]:
        """Average by the weights, then step from the old parameters with momentum; the bank follows."""
        weights = self.client_weights(updates)
        self.receive(updates)
        averaged = average_states([update.state for update in updates], weights)
        return self._with_momentum(global_state, averaged)

    def client_weights(self, updates: Sequence[ClientUpdate]) -> list[float]:
        """a_k of the round. Before there is a bank to compare with: the clients' record counts."""
        # fidelity: first-round-weights
        if self.aggregation == "records" or self.bank is None:
            return [float(update.num_records) for update in updates]
        sent = [ClassPrototypes.from_tensors(update.message) for update in updates]
        similarity = torch.tensor([mean_similarity(one, self.bank) for one in sent], dtype=torch.float64)
        return similarity_weights(similarity, self.sensitivity, placement=self.softplus).tolist()

    def _with_momentum(self, old: Mapping[str, Tensor], averaged: State) -> dict[str, Tensor]:
        """v ← momentum · v + (θ̄ - θ), θ ← θ + η v on parameters; θ̄ for everything else."""
        # fidelity: server-momentum-parameters
        if self.server_momentum == 0 and self.server_learning_rate == 1:
            return averaged
        unknown = sorted(self.parameters - averaged.keys())
        if unknown or not self.parameters:
            raise ConfigError(
                f"FedMPA was told to move {unknown[0] if unknown else 'no parameter'!r} by momentum, which does not fit "
                "the model. Take the names from parameter_names(module) of the module that is trained."
            )
        new = dict(averaged)
        for name in [name for name in averaged if name in self.parameters]:
            start = old[name].to("cpu", torch.float64)
            step = averaged[name].to("cpu", torch.float64) - start
            if name in self.velocity:
                step = self.server_momentum * self.velocity[name].double() + step
            self.velocity[name] = step.to(averaged[name].dtype)
            new[name] = (start + self.server_learning_rate * step).to(averaged[name].dtype)
        return new

    def state_dict(self) -> dict[str, Any]:
        """Bank, uploads and velocity."""
        return {**super().state_dict(), "velocity": dict(self.velocity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        super().load_state_dict(state)
        self.velocity = dict(state["velocity"])


def parameter_names(module: nn.Module) -> tuple[str, ...]:
    """State names of the module's parameters, in its order; without buffers."""
    # Tied weights stand under each of their names in the state; momentum must reach all of them.
    return tuple(name for name, _ in module.named_parameters(remove_duplicate=False))
