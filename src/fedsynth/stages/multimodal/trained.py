"""A trained classifier as those see it who evaluate or attack it, whatever its data and strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fedsynth.errors import ArtifactError
from fedsynth.federated.strategies.options import PERSONAL_STRATEGIES
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.multimodal.federation_files import load_bank, load_models, load_uploads

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class SplitOutputs:
    """Answers of one or several models to a whole split."""

    logits: Float[Tensor, "model n class"]
    """One model, or one for each client that keeps its own."""
    embeddings: dict[str, Float[Tensor, "model n dim"]]
    """By modality; a modality that the classifier was not trained with is left out."""
    label: Int64[Tensor, " n"]
    group: Int64[Tensor, " n"]
    """Whom a record belongs to: the participant, or the record itself where every record stands alone."""
    client: Int64[Tensor, " n"]
    """-1 outside the training split."""


class Records(Protocol):
    """One kind of data and network, in the words above; ``stages/<kind>/records.py`` has one for each kind."""

    def network(self) -> nn.Module:
        """The network with its global weights, in evaluation mode."""

    def answer(
        self, network: Any, split: Split
    ) -> tuple[Float[Tensor, "n class"], dict[str, Float[Tensor, "n dim"]]]:
        """Logits and embeddings of a split."""

    def about(self, split: Split) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        """Label, group and client of each record."""


class TrainedClassifier:
    """The classifier of an artifact.

    Attributes:
        prototypes: The server's bank at the chosen round; None for strategies without.
        uploads: What each client sent in that round, as sent (with noise, if it had any); {} without prototypes.
        history: One row of metrics per round or epoch.
        simulated: Whether its data are.
        num_models: 1, or the number of clients that keep their own models.
    """

    def __init__(self, records: Records, encoder: Artifact) -> None:
        self._records = records
        self._models = load_models(encoder)
        self._personal = personal(encoder.manifest["settings"])
        self.prototypes = load_bank(encoder)
        self.uploads = load_uploads(encoder)
        self.history: list[dict[str, float]] = json.loads(encoder.file("history.json").read_text())
        self.simulated = bool(encoder.manifest["simulated"])
        self.num_models = len(self._models) if self._personal else 1

    def outputs(self, split: Split) -> SplitOutputs:
        """Answers of the global model, or of every client's own."""
        states: Sequence[Mapping[str, Tensor] | None] = [None]
        if self._personal:
            states = list(self._models.values())
        return self._answers(states, split)

    def client_outputs(self, client: int, split: Split) -> SplitOutputs:
        """Answers under the weights that a client uploaded (or kept) in the chosen round.

        Raises:
            ArtifactError: If these were not kept: strategies that share all weights and nothing else do not.
        """
        if client not in self._models:
            raise ArtifactError(
                f"The weights of client {client} were not kept; there are those of {sorted(self._models)}. They "
                "are kept for strategies that share prototypes and for models or layers that stay with clients."
            )
        return self._answers([self._models[client]], split)

    def _answers(self, states: Sequence[Mapping[str, Tensor] | None], split: Split) -> SplitOutputs:
        logits, embeddings = [], []
        for state in states:
            network = self._records.network()
            if state is not None:  # under FedBN only what differs from the global model
                network.load_state_dict({**network.state_dict(), **state})
            answer = self._records.answer(network, split)
            logits.append(answer[0])
            embeddings.append(answer[1])
        label, group, client = self._records.about(split)
        stacked = {name: torch.stack([one[name] for one in embeddings]) for name in embeddings[0]}
        return SplitOutputs(torch.stack(logits), stacked, label, group, client)


def personal(settings: Mapping[str, Any]) -> bool:
    """Whether stored settings are those of a training without a global model."""
    return settings["training"] == "federated" and settings["strategy"]["name"] in PERSONAL_STRATEGIES


def open_classifier(encoder: Artifact, clients: Artifact) -> TrainedClassifier:
    """The trained classifier of an artifact.

    Args:
        encoder: Of a stage that trains one: ``fusion_encoder`` or ``speech_classifier``.
        clients: The data it was trained on.

    Raises:
        ArtifactError: For an artifact of another kind.
    """
    # Imported here, because they import this module; by name, because keys follow imports.
    from fedsynth.stages.fusion_encoder.records import PairedRecords
    from fedsynth.stages.speech_classifier.records import SpeechRecords

    known: dict[str, type[PairedRecords] | type[SpeechRecords]] = {
        "fusion_encoder": PairedRecords, "speech_classifier": SpeechRecords,
    }  # fmt: skip
    kind = encoder.manifest["kind"]
    if kind not in known:
        raise ArtifactError(f"{encoder.stage} is a {kind}, not a trained classifier: {', '.join(known)}.")
    return TrainedClassifier(known[kind](encoder, clients), encoder)
