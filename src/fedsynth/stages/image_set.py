"""Labelled images as stages hand them on: one file, one form, for real and for made ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_set_kinds import MULTICLASS, TASKS

IMAGES_FILE = "images.safetensors"
#: By how much the probabilities of an image may miss a sum of 1, of rounding.
SUM_TOLERANCE = 1e-3
FIELDS = ("image", "label", "patient", "source", "guidance", "soft_label")


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one split with what is known of each.

    Attributes:
        image: Grey levels.
        label: Class of each image (int64 vector), or its labels (uint8 matrix) of a multi-label task.
        classes: Names of the classes or labels.
        task: ``multiclass`` or ``multilabel``.
        patient: Number of the person, unique over splits and sites; None where none is known (made images).
        source: Of made images the row of the real training image each was made of; None for real ones, and where the
            reader is a server or the images are of several sites.
        guidance: Of synthetic images the guidance weight each was sampled with.
        soft_label: Of made images what the classifiers of their site say of each on average: probabilities of the
            classes, or of each label. Where they are given, classifiers are trained on them; ``label`` stays that of
            the source.

    Raises:
        DataError: If types, shapes or lengths do not agree.
    """

    image: UInt8[Tensor, "n c h w"]
    label: Shaped[Tensor, "n ..."]
    classes: tuple[str, ...]
    task: str = MULTICLASS
    patient: Int64[Tensor, " n"] | None = None
    source: Int64[Tensor, " n"] | None = None
    guidance: Float[Tensor, " n"] | None = None
    soft_label: Float[Tensor, "n k"] | None = None

    def __post_init__(self) -> None:
        shape, wanted = tuple(self.label.shape), _label_shape(self)
        if self.image.dtype != torch.uint8 or self.image.ndim != 4:
            raise DataError(
                f"Images must be uint8 of shape [n, channels, height, width], got {self.image.dtype} "
                f"{list(self.image.shape)}."
            )
        if self.task not in TASKS or shape != wanted:
            raise DataError(
                f"Labels of a {self.task} task with {len(self.classes)} classes must have shape {list(wanted)}, "
                f"got {list(shape)}."
            )
        for name in ("patient", "source", "guidance"):
            values = getattr(self, name)
            if values is not None and tuple(values.shape) != (len(self.image),):
                raise DataError(f"{name} must hold one number an image, got shape {list(values.shape)}.")
        if self.soft_label is not None:
            _check_soft_label(self.soft_label, self)

    def __len__(self) -> int:
        return len(self.image)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def rows(self, index: Tensor) -> ImageSet:
        """Some of the images, in the order of ``index`` (numbers or a mask)."""
        taken: dict[str, Any] = {
            name: None if (values := getattr(self, name)) is None else values[index]
            for name in ("patient", "source", "guidance", "soft_label")
        }
        return replace(self, image=self.image[index], label=self.label[index], **taken)

    def targets(self) -> Float[Tensor, "n k"]:
        """Labels as a matrix of 0 and 1, one column a class, for either task."""
        if self.task == MULTICLASS:
            return torch.nn.functional.one_hot(self.label, self.num_classes).float()
        return self.label.float()

    def training_targets(self) -> Float[Tensor, "n k"]:
        """What a classifier is trained on: the soft labels if there are any, else ``targets``."""
        return self.targets() if self.soft_label is None else self.soft_label

    def counts(self) -> dict[str, int]:
        """Images of each class; of a multi-label task those with the label."""
        return dict(zip(self.classes, self.targets().sum(0).long().tolist(), strict=True))

    def to_tensors(self, split: str = "train") -> dict[str, Tensor]:
        """For safetensors, names prefixed by the split."""
        held = {name: getattr(self, name) for name in FIELDS}
        return {f"{split}.{name}": values for name, values in held.items() if values is not None}

    def describe(self) -> dict[str, Any]:
        """What the notes of an artifact must say for ``read_image_set`` to read it again."""
        return {"classes": list(self.classes), "task": self.task, "image_shape": list(self.image.shape[1:])}


def read_image_set(artifact: Artifact, split: str = "train") -> ImageSet:
    """One split of a stage's images.

    Raises:
        ArtifactError: If the artifact holds no images.
        DataError: If it has no such split, or was written in another form.
    """
    tensors, notes = artifact.load(IMAGES_FILE), artifact.manifest["notes"]
    if f"{split}.image" not in tensors:
        held = sorted({name.partition(".")[0] for name in tensors})
        raise DataError(
            f"stages.{artifact.stage} holds no {split} images, only {', '.join(held)}. Made images exist for train only."
        )
    fields = {name: tensors.get(f"{split}.{name}") for name in FIELDS}
    return ImageSet(classes=tuple(notes["classes"]), task=notes["task"], **fields)  # type: ignore[arg-type]


def _label_shape(images: ImageSet) -> tuple[int, ...]:
    return (len(images.image),) if images.task == MULTICLASS else (len(images.image), len(images.classes))


def _check_soft_label(soft: Tensor, images: ImageSet) -> None:
    wanted = [len(images.image), len(images.classes)]
    if not soft.is_floating_point() or list(soft.shape) != wanted:
        raise DataError(
            f"soft_label must be floating point of shape {wanted}, got {soft.dtype} {list(soft.shape)}."
        )
    if not bool(((soft >= 0) & (soft <= 1)).all()):
        raise DataError("soft_label must hold probabilities, in [0, 1], got values outside or NaN.")
    if images.task == MULTICLASS and bool(((soft.sum(1) - 1).abs() > SUM_TOLERANCE).any()):
        raise DataError("soft_label must sum to 1 over the classes of each image of a multi-class task.")
