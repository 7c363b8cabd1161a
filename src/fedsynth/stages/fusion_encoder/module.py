"""Local training of the fusion network on a client (Eqs. 9, 16, 17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from fedsynth.data.paired import modality_masks
from fedsynth.models.fusion_classifier import FusionClassifier
from fedsynth.stages.fusion_encoder.network import MODALITIES, build_network, modality_mask
from fedsynth.stages.multimodal.module import FUSED, Answer, MultimodalClassifier


class FusionEncoder(MultimodalClassifier):
    """Cross-entropy on both classes with modality dropout; federated or, in a stock Trainer, centralized.

    Args:
        network: Numbers that build the network; see ``FusionEncoderSettings``.
        modality_dropout: p_m of Eq. (9): masks are drawn anew for every batch. Without effect for a network
            of one modality, which Eq. (9) never drops.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        modalities: What the network is trained and validated with. The encoder of a modality left out gets no
            gradient, so AdamW leaves it as it was initialized.
        num_models: See ``MultimodalClassifier``.
    """

    network: FusionClassifier

    def __init__(
        self,
        *,
        network: dict[str, Any],
        modality_dropout: float,
        learning_rate: float,
        weight_decay: float,
        modalities: Sequence[str] = MODALITIES,
        num_models: int = 1,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, num_models=num_models)
        self.save_hyperparameters()
        self.network = build_network(network)
        self.modality_dropout = modality_dropout
        self.shown = modality_mask(modalities)

    def answer(self, batch: Mapping[str, Tensor]) -> Answer:
        """With every modality that the network was made for."""
        return self._answer(batch, self.shown.expand(len(batch["label"]), 2))

    def training_answer(self, batch: Mapping[str, Tensor]) -> Answer:
        """With modalities dropped at random."""
        return self._answer(batch, self.training_mask(len(batch["label"])))

    def _answer(self, batch: Mapping[str, Tensor], mask: Bool[Tensor, "b 2"]) -> Answer:
        mask = mask.to(self.device)
        output = self.network(batch["image"], batch["ecg"], mask)
        embeddings = {**{name: getattr(output, name) for name in MODALITIES}, FUSED: output.latent}
        present = {name: mask[:, index] for index, name in enumerate(MODALITIES)}
        return Answer(output.logits, embeddings, present)

    def training_mask(self, num: int) -> Bool[Tensor, "num 2"]:
        """Eq. (9), drawn from the global CPU stream, which the loops seed for each client and round or epoch."""
        if not bool(self.shown.all()):
            return self.shown.expand(num, 2)
        return modality_masks(num, self.modality_dropout, torch.default_generator)
