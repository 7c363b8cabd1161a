"""Join the features of a frozen encoder with those of the real classifier."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.image_set import read_image_set
from fedsynth.stages.joined_features.spec import JoinedFeaturesSettings
from fedsynth.stages.out_of_memory import with_smaller_batches
from fedsynth.stages.pseudo_features.stored import FEATURES_FILE
from fedsynth.stages.tstr_densenet.trained import open_densenet

SPLITS = ("train", "val", "test")


def join(
    feature: Float[Tensor, "n d"], seen: Float[Tensor, "n e"], classifier_share: float
) -> Float[Tensor, "n d+e"]:
    """[√(1 - s) f / ‖f‖, √s g / ‖g‖]: rows of length 1, of whose square the share s is the classifier's.

    Args:
        feature: f, of a frozen encoder.
        seen: g, of the classifier, centered: pooled features after a ReLU have a common part that tells nothing.
        classifier_share: s.
    """
    # fidelity: joined-condition
    parts = (normalize(feature) * (1 - classifier_share) ** 0.5, normalize(seen) * classifier_share**0.5)
    return torch.cat(parts, dim=1)


def run(settings: JoinedFeaturesSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``features.safetensors`` of the same form as that of ``pseudo_features``, rows of length 1."""
    stored = inputs["features"].load(FEATURES_FILE)
    classifier = open_densenet(inputs["classifier"], computing_device(context))
    key = f"stages.{context.name}.batch_size"
    seen: dict[str, Tensor] = {}
    batch_size = settings.batch_size
    for split in SPLITS:
        image = read_image_set(inputs["images"], split).image
        seen[split], batch_size = with_smaller_batches(partial(classifier.features, image), batch_size, key)
    center = seen["train"].mean(0)
    tensors = {
        f"{split}.feature": join(stored[f"{split}.feature"], seen[split] - center, settings.classifier_share)
        for split in SPLITS
    }
    context.save(FEATURES_FILE, tensors)
    encoder = f"{inputs['features'].manifest['notes']['encoder']} + classifier"
    notes = {
        "encoder": encoder,
        "dim": int(tensors["train.feature"].shape[1]),
        # For audits: neither of them is independent of what is generated from this.
        "made_of": {role: inputs[role].key for role in ("features", "classifier")},
    }
    return Outcome(notes=notes)
