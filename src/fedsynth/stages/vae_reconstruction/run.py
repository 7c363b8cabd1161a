"""Decode the stored latents of the training images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsynth.data.image_codec import grey_levels, unit_images
from fedsynth.errors import DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.image_codec.stored import LATENTS_FILE, open_codec
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet, read_image_set
from fedsynth.stages.out_of_memory import with_smaller_batches
from fedsynth.stages.vae_reconstruction.spec import VaeReconstructionSettings


def run(
    settings: VaeReconstructionSettings, inputs: Mapping[str, Artifact], context: StageContext
) -> Outcome:
    """Decoded training images with their labels; of an autoencoder that draws, of the draws diffusion trains on."""
    real = read_image_set(inputs["images"], "train")
    latent = inputs["codec"].load(LATENTS_FILE)["train.latent"]
    if len(latent) != len(real):
        raise DataError(
            f"stages.{inputs['codec'].stage} holds {len(latent)} training latents but stages.{inputs['images'].stage} "
            f"{len(real)} training images; they must be made of the same images."
        )
    device = computing_device(context)
    codec = open_codec(inputs["codec"], device)

    def decode(size: int) -> Tensor:
        return torch.cat([grey_levels(codec.decode(part.to(device))).cpu() for part in latent.split(size)])

    image, _ = with_smaller_batches(decode, settings.batch_size, f"stages.{context.name}.batch_size")
    made = ImageSet(image, real.label, real.classes, real.task, source=torch.arange(len(real)))
    context.save(IMAGES_FILE, made.to_tensors("train"))
    error = float((unit_images(image) - unit_images(real.image)).abs().mean())
    # Nothing here is drawn; the codec's seed is the only one there is.
    seed = int(inputs["codec"].manifest["settings"]["seed"])
    return Outcome(
        metrics=[Metric("vae_reconstruction", "train/reconstruction_error", error, seed)],
        notes={**made.describe(), "counts": {"train": made.counts()}},
    )
