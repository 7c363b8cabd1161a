"""Features of all real images."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.image_set import read_image_set
from fedsynth.stages.pseudo_features.pieces import encode_pieces
from fedsynth.stages.pseudo_features.spec import PseudoFeaturesSettings
from fedsynth.stages.pseudo_features.stored import FEATURES_FILE, make_encoder

SPLITS = ("train", "val", "test")


def run(settings: PseudoFeaturesSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Raw features of the training, validation and test images, in the order of the images."""
    encoder = make_encoder(
        settings, inputs.get("classifier"), f"stages.{context.name}", computing_device(context)
    )
    tensors: dict[str, Tensor] = {}
    batch_size = settings.batch_size
    for split in SPLITS:
        image = read_image_set(inputs["images"], split).image
        tensors[f"{split}.feature"], batch_size = encode_pieces(image, encoder, batch_size, split, context)
    context.save(FEATURES_FILE, tensors)
    notes = {
        "encoder": encoder.name,
        "dim": encoder.dim,
        "weights_sha256": encoder.weights_sha256,
        "counts": {split: len(tensors[f"{split}.feature"]) for split in SPLITS},
    }
    if batch_size < settings.batch_size:
        notes["batch_size"] = batch_size
    return Outcome(notes=notes)
