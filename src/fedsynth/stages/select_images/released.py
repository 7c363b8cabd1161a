"""What leaves the client, and what of the same set stays."""

from __future__ import annotations

import hashlib

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.pipeline.stage import StageContext
from fedsynth.seeding import generator
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet

#: What may leave; all other tensors of the set are private.
PUBLIC = ("train.image", "train.label")
#: Training images whose content decides the order: more would only take time.
MAX_HASHED = 1_000


def release_order(images: ImageSet, num: int, seed: int) -> Int64[Tensor, " m"]:
    """An order of the released images that says nothing of the rows of their sources.

    In the order of the sources, neighbors would be of one patient. The stream depends on the private images, since seed
    and settings are no secret; whoever has those images can tell the order, and needs it no more.

    Args:
        images: The training images.
        num: Of released images.
        seed: Of the stage.
    """
    content = images.image[:MAX_HASHED].contiguous().numpy().tobytes()
    secret = hashlib.sha256(content).hexdigest()
    return torch.randperm(num, generator=generator(seed, "select_images", "release order", secret))


def save_released(made: ImageSet, context: StageContext) -> None:
    """Images and labels for everybody; source and guidance weight of each for clients and auditors."""
    tensors = made.to_tensors()
    context.save(IMAGES_FILE, {name: tensors[name] for name in PUBLIC})
    context.save_private(IMAGES_FILE, {name: tensors[name] for name in tensors if name not in PUBLIC})
