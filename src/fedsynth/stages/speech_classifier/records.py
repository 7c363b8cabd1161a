"""The speech classifier and its segments, as evaluations of any multimodal classifier ask for them."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.data.speech import SpeechClients, SpeechSplit
from fedsynth.models.speech import SpeechClassifier
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.multimodal.trained import Split
from fedsynth.stages.speech_classifier.network import load_network, predict


class SpeechRecords:
    """Implements ``multimodal.trained.Records``. A segment belongs to its participant."""

    def __init__(self, encoder: Artifact, clients: Artifact) -> None:
        self._encoder = encoder
        self._speech = SpeechClients.from_tensors(clients.load("speech.safetensors"))

    def network(self) -> SpeechClassifier:
        return load_network(self._encoder, self._speech.train)

    def answer(
        self, network: SpeechClassifier, split: Split
    ) -> tuple[Float[Tensor, "n class"], dict[str, Float[Tensor, "n dim"]]]:
        return predict(network, self._split(split))

    def about(self, split: Split) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        segments = self._split(split)
        return segments.label, segments.participant, segments.client

    def _split(self, split: Split) -> SpeechSplit:
        return getattr(self._speech, split)
