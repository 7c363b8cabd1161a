"""Feature spaces of the audit: every image set of it, seen through one encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.models.image_encoder import ImageFeatures
from fedsynth.models.pixel_pca import fit_pixel_pca
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import StageContext
from fedsynth.stages.audit_images.records import AuditRecords
from fedsynth.stages.audit_images.spec import AuditImagesSettings
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.pseudo_features.pieces import encode_pieces
from fedsynth.stages.pseudo_features.stored import FEATURES_FILE, ClassifierEncoder, open_encoder


@dataclass(frozen=True, eq=False)
class Space:
    """All image sets of the audit in one feature space.

    Attributes:
        name: Of the space, e.g. ``efficientnet_lite0``.
        is_primary: Of the encoder the user chose; its metrics have no suffix.
        train, val, test: Real images; ``train`` only those looked at.
        released, independent: Made ones.
        negative, control: Real images of other people (`AuditRecords`).
        dp: Points of a differentially private release; only the space that was made for it has some.
    """

    name: str
    is_primary: bool
    train: Float[Tensor, "n d"]
    val: Float[Tensor, "v d"]
    test: Float[Tensor, "t d"]
    released: Float[Tensor, "m d"]
    independent: Float[Tensor, "i d"] | None
    negative: Float[Tensor, "a d"]
    control: Float[Tensor, "b d"]
    dp: Float[Tensor, "m d"] | None = None

    @cached_property
    def suffix(self) -> str:
        """Of the names of metrics in this space."""
        return "" if self.is_primary else f"/{self.name}"


def open_spaces(
    records: AuditRecords,
    settings: AuditImagesSettings,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> tuple[Space, ...]:
    """The encoder's space first, then pixel components and, with the inputs, C_r's features.

    Raises:
        DataError: Stored features are not those of the real images.
    """
    device = computing_device(context)
    stored = inputs["features"].load(FEATURES_FILE)
    for split, images in records.real.items():
        _check_length(stored[f"{split}.feature"], len(images), split, inputs)
    encoder = open_encoder(inputs["features"], inputs.get("classifier"), device)
    real = {split: stored[f"{split}.feature"] for split in records.real}
    spaces = [_space(encoder, records, real, settings.batch_size, context, is_primary=True)]
    pixels = fit_pixel_pca(records.real["train"].image, settings.num_components)
    others: list[ImageFeatures] = [pixels]
    if "classifier" in inputs and encoder.name != ClassifierEncoder.name:
        others.append(ClassifierEncoder(inputs["classifier"], device))
    spaces += [_space(other, records, None, settings.batch_size, context) for other in others]
    return tuple(spaces)


def _check_length(feature: Tensor, num_images: int, split: str, inputs: Mapping[str, Artifact]) -> None:
    if len(feature) != num_images:
        raise DataError(
            f"stages.{inputs['features'].stage} holds the features of {len(feature)} {split} images, but "
            f"stages.{inputs['images'].stage} has {num_images}. Name the features of the same images."
        )


def _space(
    encoder: ImageFeatures,
    records: AuditRecords,
    stored: Mapping[str, Tensor] | None,
    batch_size: int,
    context: StageContext,
    *,
    is_primary: bool = False,
) -> Space:
    def features(image: Tensor, images: str) -> Tensor:
        name = f"{encoder.name.replace(':', '-').replace('/', '-')}-{images}"
        return encode_pieces(image, encoder, batch_size, name, context)[0]

    independent = records.independent
    return make_space(
        encoder.name,
        records,
        stored or {split: features(images.image, split) for split, images in records.real.items()},
        features(records.released.image, "released"),
        None if independent is None else features(independent.image, "independent"),
        is_primary=is_primary,
    )


def make_space(
    name: str,
    records: AuditRecords,
    real: Mapping[str, Tensor],
    released: Tensor,
    independent: Tensor | None,
    *,
    is_primary: bool = False,
) -> Space:
    """A space from features of the three real splits and the made sets."""
    held_out = torch.cat([real[split] for split in records.held_out])
    return Space(
        name=name,
        is_primary=is_primary,
        train=real["train"][records.train_rows],
        val=real["val"],
        test=real["test"],
        released=released,
        independent=independent,
        negative=held_out[records.negative],
        control=held_out[records.control],
    )
