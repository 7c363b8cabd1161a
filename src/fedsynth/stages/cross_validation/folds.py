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
    """The real training row each image was made of; of real images, their own row.

    Images of a union of sites have no source either, but their rows are no real images: the plan refuses them, as it
    does sets made of other images than the real ones (`spec`), since their folds would be others by the same numbers.
    """
    return torch.arange(len(images)) if images.source is None else images.source


def folds_of(
    row: Int64[Tensor, " n"],
    real: ImageSet,
    *,
    num_folds: int,
    unit: str,
    seed: int,
    path: str,
) -> Int64[Tensor, " n"]:
    """A fold in [0, num_folds) for every image.

    By image, a shuffled row r of the real training images is in fold (place of r) mod ``num_folds``; by patient their
    patients are shuffled and dealt out likewise, and folds differ in size.

    Args:
        row: See `origins`, of a training set.
        real: Real training images, whose patients are those of the rows.
        num_folds: At least 2.
        unit: ``image`` or ``patient``.
        seed: Of the shuffle, the same for all methods.
        path: Of the stage in the config, for messages.

    Raises:
        ConfigError: Fewer rows or patients than folds, or patients asked for that are not known.
        DataError: Images whose rows are not among the real ones.
    """
    # fidelity: cross-validation-folds
    num_origins = len(real)
    if int(row.max()) >= num_origins:
        raise DataError(
            f"{path}: an image was made of row {int(row.max())}, but the real training images are {num_origins}. Name "
            "sets that are made of the input images."
        )
    if unit == PATIENT:
        if real.patient is None:
            raise ConfigError(
                f"{path}.unit=patient needs real images with patients, these have none. Say {path}.unit=image.",
                key=f"{path}.unit",
            )
        patients, of_row = real.patient.unique(return_inverse=True)
        row, num_origins = of_row[row], len(patients)
    if num_origins < num_folds:
        raise ConfigError(
            f"{path}.num_folds must be at most the {num_origins} {unit}s that are dealt out, got {num_folds}.",
            key=f"{path}.num_folds",
        )
    order = torch.randperm(num_origins, generator=generator(seed, "cross_validation", "folds"))
    place = torch.empty_like(order)
    place[order] = torch.arange(num_origins)
    return place[row] % num_folds
