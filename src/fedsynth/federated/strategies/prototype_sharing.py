"""Clients that send class prototypes, and a server that keeps a bank of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.base import Strategy
from fedsynth.prototypes.class_prototypes import (
    ClassPrototypes,
    PrototypeSums,
    Weighting,
    pooled_prototypes,
    update_bank,
)
from fedsynth.seeding import generator

if TYPE_CHECKING:
    from fedsynth.federated.client import ClientId, ClientUpdate
    from fedsynth.privacy.prototype_release import PrototypeMechanism


class PrototypeSharing(Strategy):
    """The part that FedProto, FedGPD and FedMPA have in common: local prototypes up, the global bank down.

    After its local epochs a client embeds every training record with its model, in evaluation mode, and sends
    the mean embedding of each class and modality with the number of records behind it; a class it lacks is
    not sent. The module must have ``embed(batch) -> (embeddings, label, present)``.

    Args:
        modalities: Embeddings that prototypes are made of, e.g. ``("image", "ecg", "fused")``.
        bank_momentum: γ in [0, 1) of the bank's moving average; 0 replaces it each round.
        prototype_weighting: Clients' prototypes are pooled by their numbers of records, or uniformly.
        mechanism: Adds noise on the client; None sends the means as they are.
        noise_seed: Root of that noise, one stream per client and round. It enters no checkpoint: who knows it
            can subtract the noise.
        num_classes: C.
    """

    def __init__(
        self,
        *,
        modalities: Collection[str],
        bank_momentum: float = 0.0,
        prototype_weighting: Weighting = "count",
        mechanism: PrototypeMechanism | None = None,
        noise_seed: int = 0,
        num_classes: int = 2,
    ) -> None:
        super().__init__()
        if not 0 <= bank_momentum < 1:
            raise ConfigError(f"bank_momentum must be in [0, 1), got {bank_momentum}. The paper's is 0.9.")
        self.modalities = tuple(modalities)
        self.bank_momentum, self.prototype_weighting = bank_momentum, prototype_weighting
        self.mechanism, self._noise_seed, self.num_classes = mechanism, noise_seed, num_classes
        self.bank: ClassPrototypes | None = None
        self.uploads: dict[ClientId, ClassPrototypes] = {}
        self._placed: tuple[Any, ...] | None = None

    def client_message(
        self, module: nn.Module, batches: Iterable[Any], *, client: ClientId, round: int
    ) -> dict[str, Tensor]:
        """The client's class prototypes of this round, noisy if there is a mechanism."""
        embed: Any = getattr(module, "embed", None)
        if embed is None:
            raise ConfigError(
                f"{type(self).__name__} needs a module with embed(batch), {type(module).__name__} has none. "
                "Use federated=fedavg, or a module of stages/multimodal."
            )
        sums = PrototypeSums(self.num_classes)
        for batch in batches:
            embeddings, label, present = embed(batch)
            self._require(embeddings, f"{type(module).__name__}.embed")
            chosen = {name: self.embedding(embeddings[name]) for name in self.modalities}
            sums.add(chosen, label, {name: present[name] for name in self.modalities if name in present})
        means = sums.prototypes().to("cpu")
        if self.mechanism is not None:
            stream = generator(self._noise_seed, "prototypes", client, round)
            means = self.mechanism.release(means, stream, round=round)
        return means.to_tensors()

    def embedding(self, embedding: Tensor) -> Tensor:
        """What of an embedding enters the mean: all of it, or under a mechanism what lies within its radius."""
        return embedding if self.mechanism is None else self.mechanism.clip(embedding)

    def receive(self, updates: Sequence[ClientUpdate]) -> None:
        """Take the round's prototypes into the bank."""
        self.uploads = {update.client: ClassPrototypes.from_tensors(update.message) for update in updates}
        pooled = pooled_prototypes(list(self.uploads.values()), self.prototype_weighting)
        self.bank = update_bank(self.bank, pooled, self.bank_momentum)

    def aligned(self, step: Mapping[str, Any], modality: str) -> dict[str, Tensor] | None:
        """Arguments of an alignment loss for one modality of a training step; None before the first bank."""
        missing = [name for name in ("embeddings", "label") if name not in step]
        if missing:
            raise ConfigError(
                f"{type(self).__name__} aligns embeddings, but training_step returned no {' and no '.join(missing)}. "
                "It must return a dictionary with loss, embeddings and label."
            )
        self._require(step["embeddings"], "training_step")
        if self.bank is None:
            return None
        embedding = step["embeddings"][modality]
        bank = self._bank_on(embedding.device)
        arguments = {
            "embedding": embedding,
            "label": step["label"],
            "known": bank.known(modality),
            "prototype": bank.mean[modality],
        }
        present = step.get("present", {}).get(modality)
        return arguments if present is None else {**arguments, "present": present}

    def _require(self, embeddings: Mapping[str, Tensor], source: str) -> None:
        missing = [name for name in self.modalities if name not in embeddings]
        if missing:
            raise ConfigError(
                f"{type(self).__name__} makes prototypes of {', '.join(self.modalities)}, but {source} returned "
                f"embeddings of {', '.join(embeddings) or 'nothing'} only: {missing[0]!r} is missing."
            )

    def _bank_on(self, device: torch.device) -> ClassPrototypes:
        """The bank where the client trains; moved once a round."""
        assert self.bank is not None
        if self._placed is None or self._placed[0] is not self.bank or self._placed[1] != device:
            self._placed = (self.bank, device, self.bank.to(device))
        return self._placed[2]

    def sent_down(self, global_state: Mapping[str, Tensor]) -> list[Tensor]:
        """The bank as well."""
        bank = [] if self.bank is None else list(self.bank.mean.values())
        return [*super().sent_down(global_state), *bank]

    def state_dict(self) -> dict[str, Any]:
        """The bank, and what every client of the last round sent."""
        return {
            **super().state_dict(),
            "bank": None if self.bank is None else self.bank.to_tensors(),
            "uploads": {client: sent.to_tensors() for client, sent in self.uploads.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        super().load_state_dict(state)
        self.bank = None if state["bank"] is None else ClassPrototypes.from_tensors(state["bank"])
        self.uploads = {
            client: ClassPrototypes.from_tensors(sent) for client, sent in state["uploads"].items()
        }
