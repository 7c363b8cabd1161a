"""The fusion encoder and its pairs, as evaluations of any multimodal classifier ask for them."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.data.paired import PairedClients, PairedSplit
from fedsynth.models.fusion_classifier import FusionClassifier
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.fusion_encoder.network import load_network, modality_mask, predict
from fedsynth.stages.multimodal.module import FUSED
from fedsynth.stages.multimodal.trained import Split


class PairedRecords:
    """Implements ``multimodal.trained.Records``. A pair belongs to nobody but itself."""

    def __init__(self, encoder: Artifact, clients: Artifact) -> None:
        self._encoder = encoder
        self._pairs = PairedClients.from_tensors(clients.load("pairs.safetensors"))
        self._modalities = list(encoder.manifest["settings"]["modalities"])

    def network(self) -> FusionClassifier:
        return load_network(self._encoder)

    def answer(
        self, network: FusionClassifier, split: Split
    ) -> tuple[Float[Tensor, "n class"], dict[str, Float[Tensor, "n dim"]]]:
        """With the modalities it was trained with."""
        pairs = self._split(split)
        output = predict(network, pairs.image, pairs.ecg, modality_mask(self._modalities))
        embeddings = {name: getattr(output, name) for name in self._modalities}
        return output.logits, {**embeddings, FUSED: output.latent}

    def about(self, split: Split) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        pairs = self._split(split)
        return pairs.label, pairs.image_id, pairs.client

    def _split(self, split: Split) -> PairedSplit:
        return getattr(self._pairs, split)
