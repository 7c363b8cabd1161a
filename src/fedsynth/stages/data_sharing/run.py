"""The union of released image sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.data_sharing.spec import SITES, DataSharingSettings
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet, read_image_set


def run(settings: DataSharingSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """All images of all sites, site after site; ``train.site`` numbers the site of each.

    A site's images come without their sources and guidance weights, which it keeps to itself.

    Raises:
        DataError: Sets of other classes, task or image size.
    """
    artifacts = [inputs[role] for role in SITES if role in inputs]
    sets = [read_image_set(artifact) for artifact in artifacts]
    _check_alike(artifacts, sets)
    union = ImageSet(
        image=torch.cat([one.image for one in sets]),
        label=torch.cat([one.label for one in sets]),
        classes=sets[0].classes,
        task=sets[0].task,
        soft_label=_soft_labels(sets),
    )
    site = torch.arange(len(sets)).repeat_interleave(torch.tensor([len(one) for one in sets]))
    context.save(IMAGES_FILE, {**union.to_tensors(), "train.site": site})
    sites = [
        {
            "stage": artifact.stage,
            "site": artifact.manifest["notes"].get("site"),
            "num_images": len(one),
            "counts": one.counts(),
        }
        for artifact, one in zip(artifacts, sets, strict=True)
    ]
    notes = {**union.describe(), "site": sites, "num_images": len(union), "counts": union.counts()}
    return Outcome(notes=notes)


def _soft_labels(sets: Sequence[ImageSet]) -> Tensor | None:
    """Of all images, 0 and 1 for the sites that shared none; None if no site did."""
    if all(one.soft_label is None for one in sets):
        return None
    return torch.cat([one.training_targets() for one in sets])


def _check_alike(artifacts: Sequence[Artifact], sets: Sequence[ImageSet]) -> None:
    first = sets[0]
    for artifact, one in zip(artifacts, sets, strict=True):
        for what, mine, theirs in (
            ("classes", one.classes, first.classes),
            ("task", one.task, first.task),
            ("image shape", list(one.image.shape[1:]), list(first.image.shape[1:])),
        ):
            if mine != theirs:
                raise DataError(
                    f"stages.{artifact.stage} cannot be joined with stages.{artifacts[0].stage}: its {what} is {mine}, "
                    f"not {theirs}. Sites that share images must agree on classes and size."
                )
        if len(one) == 0:
            raise DataError(f"stages.{artifact.stage} holds no images to share. Loosen its selection.")
