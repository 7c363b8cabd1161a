"""Apply the frozen global encoder to every record of every client and split."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedsynth.data.paired import PairedClients
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.stages.encode.spec import EncodeSettings
from fedsynth.stages.fusion_encoder.network import load_network, modality_mask, predict


def run(settings: EncodeSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Latents of all splits with labels, clients and stable record numbers; mean norms by class."""
    pairs = PairedClients.from_tensors(inputs["clients"].load("pairs.safetensors"))
    network = load_network(inputs["encoder"])
    tensors: dict[str, Tensor] = {}
    metrics = []
    trained_as = inputs["encoder"].manifest["settings"]
    seed = int(trained_as["seed"])
    mask = modality_mask(trained_as["modalities"])  # an encoder sees what it was trained with
    for name in ("train", "val", "test"):
        split = getattr(pairs, name)
        latent = predict(network, split.image, split.ecg, mask, batch_size=settings.batch_size).latent
        tensors |= {
            f"{name}.latent": latent,
            f"{name}.label": split.label,
            f"{name}.client": split.client,
            # A pair is known by its image: every image is in exactly one pair.
            f"{name}.record_id": split.image_id,
        }
        for label, arm in enumerate(("negative", "positive")):
            norm = latent[split.label == label].norm(dim=1).mean()
            metrics.append(Metric(arm, f"{name}/mean_norm", float(norm), seed))
    context.save("latents.safetensors", tensors)
    return Outcome(metrics=metrics)
