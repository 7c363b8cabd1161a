"""Tiny image sets whose classes can be told apart, and settings of the stages that train DenseNets on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tiny_stages import OVERRIDES, artifact, found

from fedsynth.composition import compose_config, resolved
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import RESERVED
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import Outcome, find_stage
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet

SIZE, CLASSES = 16, ("normal", "bacteria", "virus")
SPLITS = {"train": 36, "val": 24, "test": 30}
#: A network small enough to train in a second.
SMALL: dict[str, Any] = {
    "growth_rate": 4, "block_config": [1, 1], "num_init_features": 8, "batch_size": 12, "steps_per_epoch": 6,
    "learning_rate": 0.01,
}  # fmt: skip
#: Settings of one kind only.
OF_KIND: dict[str, dict[str, Any]] = {
    "tstr_densenet": {**SMALL, "arm": "real", "seeds": [1, 2], "num_bootstrap": 40},
    "cross_validation": {**SMALL, "num_folds": 3, "steps_per_epoch": 10},
    "auroc_gap": {"num_bootstrap": 200},
    "data_sharing": {},
}


@cache
def defaults(kind: str, classifier: str = "slim_densenet") -> dict[str, Any]:
    """What ``configs/stage/<kind>.yaml`` says."""
    words = [f"+image_classifier={classifier}", f"+stage@stages.tiny={kind}"]
    spec = find_stage(kind, kind)
    words += [f"stages.tiny.inputs.{role}=any" for role in spec.roles]
    words += ["stages.tiny.arm=real"] if kind == "tstr_densenet" else []
    config = resolved(compose_config(["experiment=feddp_pald", *OVERRIDES, *words]))["stages"]["tiny"]
    return {key: value for key, value in config.items() if key not in RESERVED}


def tiny_settings(kind: str, **changes: Any) -> Any:
    """The settings of a stage, checked as the planner does."""
    values = {**defaults(kind), **OF_KIND[kind], **changes}
    return build_settings(find_stage(kind, kind).settings, values, "stages.tiny")


def supplier(name: str, arm: str | None = None, **inputs: str) -> Any:
    """A planned stage, as far as ``check_suppliers`` looks."""
    return SimpleNamespace(name=name, settings=SimpleNamespace(arm=arm), inputs=inputs)


def images(
    num: int, *, seed: int = 0, first_patient: int = 0, task: str = "multiclass", noise: float = 60.0
) -> ImageSet:
    """A bright band whose place is the class, in noise; two images a patient. Multi-label: any bands may be there."""
    stream = torch.Generator().manual_seed(seed)
    if task == "multiclass":
        label = torch.arange(num) // 2 % len(CLASSES)
        shown = torch.nn.functional.one_hot(label, len(CLASSES))
    else:
        shown = torch.randint(2, (num, len(CLASSES)), generator=stream)
        label = shown.to(torch.uint8)
    image = noise * torch.rand(num, 1, SIZE, SIZE, generator=stream)
    for band in range(len(CLASSES)):
        image[:, :, 5 * band : 5 * band + 5] += 120.0 * shown[:, band].view(-1, 1, 1, 1)
    return ImageSet(
        image.round().to(torch.uint8), label, CLASSES, task, patient=first_patient + torch.arange(num) // 2
    )


def real_sets(**options: Any) -> dict[str, ImageSet]:
    """Training, validation and test images of different patients."""
    return {
        split: images(num, seed=row, first_patient=1000 * row, **options)
        for row, (split, num) in enumerate(SPLITS.items())
    }


def made(real: ImageSet, *, seed: int = 9) -> ImageSet:
    """Images made of real ones, in another order, with some noise."""
    stream = torch.Generator().manual_seed(seed)
    source = torch.randperm(len(real), generator=stream)
    noise = torch.randint(-20, 21, real.image.shape, generator=stream)
    image = (real.image[source].long() + noise).clamp(0, 255).to(torch.uint8)
    return ImageSet(
        image, real.label[source], real.classes, real.task, source=source, guidance=torch.ones(len(real))
    )


def stored(
    folder: Path, sets: Mapping[str, ImageSet], *, stage_settings: Any = None, **notes: Any
) -> Artifact:
    """An image set as a stage leaves it; the artifact is called after the folder."""
    tensors: dict[str, torch.Tensor] = {}
    for split, one in sets.items():
        tensors |= one.to_tensors(split)
    path = folder / "output"
    artifact(path, {IMAGES_FILE: tensors})
    return found(path, stage_settings, Outcome(notes={**next(iter(sets.values())).describe(), **notes}))
