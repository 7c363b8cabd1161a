"""Local training of the speech network on a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedsynth.models.speech import SpeechClassifier
from fedsynth.stages.multimodal.module import Answer, MultimodalClassifier


class SpeechModule(MultimodalClassifier):
    """Cross-entropy on segments, each with the label of its participant.

    Args:
        network: Numbers that build the network; see ``SpeechClassifierSettings``.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        num_models: See ``MultimodalClassifier``.
    """

    network: SpeechClassifier

    def __init__(
        self, *, network: dict[str, Any], learning_rate: float, weight_decay: float, num_models: int = 1
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, num_models=num_models)
        self.save_hyperparameters()
        self.network = SpeechClassifier(**network)

    def answer(self, batch: Mapping[str, Tensor]) -> Answer:
        """Audio and text are always both there."""
        output = self.network(batch["audio"], batch["audio_length"], batch["text"], batch["text_length"])
        return Answer(output.logits, output.embeddings, {})
