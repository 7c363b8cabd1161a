"""Which images the audit looks at: released ones, the training images they may point at, and people never used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import StageContext
from fedsynth.seeding import generator
from fedsynth.stages.audit_images.spec import HELD_OUT, OF_SEVERAL_SITES, AuditImagesSettings
from fedsynth.stages.image_set import ImageSet, read_image_set

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class AuditRecords:
    """The images of an audit.

    Attributes:
        real: The three splits, whole.
        released, independent: Made images; the latter of a generator that knows nothing of single training images.
        train_rows: Training images that are looked at.
        source: Of each released image the place of its origin among ``train_rows``; None where it is unknown.
        negative, control: Two groups of real images of different people, none of them in training, as rows of the
            held-out images (the splits ``held_out`` in their order).
        held_out: Names of these splits.
        notes: What was left out and why, for the report.
    """

    real: Mapping[str, ImageSet]
    released: ImageSet
    independent: ImageSet | None
    train_rows: Int64[Tensor, " n"]
    source: Int64[Tensor, " m"] | None
    negative: Int64[Tensor, " a"]
    control: Int64[Tensor, " b"]
    held_out: tuple[str, ...]
    notes: dict[str, Any]

    def held_out_labels(self, rows: Int64[Tensor, " m"]) -> Tensor:
        """Of rows of the held-out images."""
        return torch.cat([self.real[split].label for split in self.held_out])[rows]


def gather(
    settings: AuditImagesSettings, inputs: Mapping[str, Artifact], context: StageContext
) -> AuditRecords:
    """Read and choose the images, at random but by the stage's seed alone.

    Raises:
        ConfigError: ``max_train`` is too small for the sources of the released images.
        DataError: Images do not fit together, or there are too few.
    """
    path = f"stages.{context.name}"
    real = {split: read_image_set(inputs["images"], split) for split in SPLITS}
    everything = read_image_set(inputs["released"])
    independent = read_image_set(inputs["independent"]) if "independent" in inputs else None
    for name, images in (("released", everything), ("independent", independent)):
        if images is not None:
            _check_alike(images, real["train"], inputs[name].stage)
    released = everything.rows(_subset(len(everything), settings.max_released, settings.seed, "released"))
    if independent is not None:
        chosen = _subset(len(independent), len(released), settings.seed, "independent")
        independent = independent.rows(chosen)
    known = inputs["released"].manifest["kind"] not in OF_SEVERAL_SITES
    source = _sources(released, len(real["train"]), inputs["released"].stage) if known else None
    train_rows = _train_rows(len(real["train"]), source, settings, path)
    held_out = HELD_OUT[settings.held_out]
    negative, control = _two_groups(
        [real[split] for split in held_out], real["train"], len(released), settings
    )
    notes = {
        "released": [len(released), len(everything)],
        "train": [len(train_rows), len(real["train"])],
        "negative": len(negative),
        "control": len(control),
        "held_out": list(held_out),
        "sources_known": source is not None,
    }
    if source is not None:
        # Rows are sorted, so the place of a row is where it would be inserted.
        source = torch.searchsorted(train_rows, source)
    return AuditRecords(real, released, independent, train_rows, source, negative, control, held_out, notes)


def _check_alike(images: ImageSet, train: ImageSet, stage: str) -> None:
    if images.image.shape[1:] != train.image.shape[1:] or images.classes != train.classes:
        raise DataError(
            f"The images of stages.{stage} have shape {list(images.image.shape[1:])} and classes "
            f"{', '.join(images.classes)}, the real ones {list(train.image.shape[1:])} and {', '.join(train.classes)}. "
            "Audit a set against the real images it was made of."
        )


def _subset(total: int, most: int | None, seed: int, name: str) -> Int64[Tensor, " m"]:
    """Rows in ascending order; all if there are no more than ``most``."""
    if most is None or total <= most:
        return torch.arange(total)
    return torch.randperm(total, generator=generator(seed, "audit", name))[:most].sort().values


def _sources(released: ImageSet, num_train: int, stage: str) -> Int64[Tensor, " m"]:
    source = released.source
    if source is None:
        raise DataError(
            f"The images of stages.{stage} do not name the training image each was made of (source). "
            "Write the set with sources, or audit another."
        )
    if int(source.min()) < 0 or int(source.max()) >= num_train:
        raise DataError(
            f"The images of stages.{stage} name sources from {int(source.min())} to {int(source.max())}, but there are "
            f"{num_train} training images. Audit a set against the real images it was made of."
        )
    return source


def _train_rows(
    total: int, source: Tensor | None, settings: AuditImagesSettings, path: str
) -> Int64[Tensor, " n"]:
    """All, or a random subset that holds every source: who is not looked at cannot be singled out."""
    if settings.max_train is None or total <= settings.max_train:
        return torch.arange(total)
    order = torch.randperm(total, generator=generator(settings.seed, "audit", "train"))
    if source is None:
        return order[: settings.max_train].sort().values
    needed = source.unique()
    if len(needed) > settings.max_train:
        raise ConfigError(
            f"{path}.max_train must be at least {len(needed)}, the number of sources of the released images looked at, "
            f"got {settings.max_train}. Raise it or lower max_released.",
            key=f"{path}.max_train",
        )
    others = order[~torch.isin(order, needed)]
    return torch.cat([needed, others[: settings.max_train - len(needed)]]).sort().values


def _two_groups(
    held_out: list[ImageSet], train: ImageSet, num_released: int, settings: AuditImagesSettings
) -> tuple[Tensor, Tensor]:
    """Rows of two groups of people: one that plays a release, one that weights are estimated on."""
    total = sum(len(images) for images in held_out)
    patients = [images.patient for images in held_out]
    known = [patient for patient in patients if patient is not None]
    if len(known) == len(held_out):
        patient = torch.cat(known)
        _check_strangers(patient, train.patient)
    else:
        patient = torch.arange(total)  # nobody known: every image counts as a person
    people, row = patient.unique(return_inverse=True)
    order = torch.randperm(len(people), generator=generator(settings.seed, "audit", "held_out"))
    counts = row.bincount(minlength=len(people))[order]
    first = int((counts.cumsum(0) <= min(num_released, total // 2)).sum())
    is_negative = torch.zeros(len(people), dtype=torch.bool)
    is_negative[order[:first]] = True
    negative, control = is_negative[row].nonzero()[:, 0], (~is_negative[row]).nonzero()[:, 0]
    if min(len(negative), len(control)) < 2:
        raise DataError(
            f"The audit needs two groups of at least 2 held-out images of different people, got {len(negative)} and "
            f"{len(control)} of {total} images ({len(people)} people). Add test images, or set held_out=val_test."
        )
    return negative, control


def _check_strangers(patient: Tensor, train: Tensor | None) -> None:
    if train is None:
        return
    shared = patient[torch.isin(patient, train)].unique()
    if len(shared):
        raise DataError(
            f"{len(shared)} patients are both in training and held out (e.g. {shared[:3].tolist()}). Controls must be "
            "of other people: split by patient."
        )
