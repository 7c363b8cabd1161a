"""Which fold every image is in: that of the real image it was made of, so that all methods leave out the same ones."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import generator
from fedsynth.stages.cross_validation.spec import PATIENT
from fedsynth.stages.image_set import ImageSet


def origins(images: ImageSet) -> Int64[Tensor, " n"]:
    """The real training row each image was made of; of real images, their own row."""
    return torch.arange(len(images)) if images.source is None else images.source


def folds_of(
    row: Int64[Tensor, " n"],
    real: ImageSet,
    *,
    num_folds: int,
    num_origins: int,
    unit: str,
    seed: int,
    path: str,
) -> Int64[Tensor, " n"]:
    """A fold in [0, num_folds) for every image.

    By image, a shuffled row r of ``num_origins`` is in fold (place of r) mod ``num_folds``; by patient the patients of
    the real training images are shuffled and dealt out likewise, and folds differ in size.

    Args:
        row: See `origins`, of a training set.
        real: Real training images, whose patients are those of the rows.
        num_folds: At least 2.
        num_origins: Above every row of every method.
        unit: ``image`` or ``patient``.
        seed: Of the shuffle, the same for all methods.
        path: Of the stage in the config, for messages.

    Raises:
        ConfigError: Fewer rows or patients than folds, or patients asked for that are not known.
        DataError: Images whose rows are not among the real ones, by patient.
    """
    # fidelity: cross-validation-folds
    if unit == PATIENT:
        if real.patient is None:
            raise ConfigError(
                f"{path}.unit=patient needs real images with patients, these have none. Say {path}.unit=image.",
                key=f"{path}.unit",
            )
        if int(row.max()) >= len(real):
            raise DataError(
                f"{path}.unit=patient: an image was made of row {int(row.max())}, but the real training images are "
                f"{len(real)}. Images of other sites have no patients here; say {path}.unit=image."
            )
        row = real.patient.unique(return_inverse=True)[1][row]
        num_origins = len(real.patient.unique())
    if num_origins < num_folds:
        raise ConfigError(
            f"{path}.num_folds must be at most the {num_origins} {unit}s that are dealt out, got {num_folds}.",
            key=f"{path}.num_folds",
        )
    order = torch.randperm(num_origins, generator=generator(seed, "cross_validation", "folds"))
    place = torch.empty_like(order)
    place[order] = torch.arange(num_origins)
    return place[row] % num_folds
