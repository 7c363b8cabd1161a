"""Images of patients who can be told apart: a pattern each, with noise of every image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny_stages import artifact
from torch import Tensor

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.reidentifier.spec import ReidentifierSettings

SETTINGS: dict[str, Any] = {
    "seed": 0, "backbone": "conv", "channels": [6, 8], "embedding_dim": 8, "weights": None, "input_size": None,
    "loss": "infonce_mix", "temperature": 0.1, "pairs": "patient", "patient_share": 0.5, "max_pairs_per_patient": 5,
    "negatives": "matched", "negatives_per_positive": 2, "augmentation": 0.5, "calibration": "platt",
    "learning_rate": 1e-2, "weight_decay": 0.0, "decay": "cosine", "batch_size": 16, "steps_per_epoch": 8,
    "patience": None, "threshold_rule": "fpr", "threshold_value": 0.2, "num_bootstrap": 50,
}  # fmt: skip


def identity_settings(**changes: Any) -> ReidentifierSettings:
    return ReidentifierSettings(**{**SETTINGS, **changes})


def people(patients: range, *, per_patient: int = 3, size: int = 12, multilabel: bool = False) -> ImageSet:
    """Images of these patients; the class of a patient is its number modulo 2."""
    patient = torch.tensor(patients).repeat_interleave(per_patient)
    patterns = {
        one: torch.rand(1, size, size, generator=torch.Generator().manual_seed(one)) for one in patients
    }
    noise = torch.randn(len(patient), 1, size, size, generator=torch.Generator().manual_seed(patients[0]))
    image = torch.stack([patterns[int(one)] for one in patient]) * 200 + 28 + 8 * noise
    label: Tensor = patient % 2
    if multilabel:
        label = torch.nn.functional.one_hot(label, 2).to(torch.uint8)
    return ImageSet(
        image=image.round().clamp(0, 255).to(torch.uint8),
        label=label,
        classes=("even", "odd"),
        task="multilabel" if multilabel else "multiclass",
        patient=patient,
    )


def identity_images(folder: Path, splits: Mapping[str, ImageSet]) -> Artifact:
    """What ``xray_images`` yields."""
    tensors: dict[str, Tensor] = {}
    for split, images in splits.items():
        tensors |= images.to_tensors(split)
    notes = splits["train"].describe()
    return artifact(folder / "images" / "output", {"images.safetensors": tensors}, notes=notes)


def three_splits(**options: Any) -> dict[str, ImageSet]:
    return {
        "train": people(range(24), **options),
        "val": people(range(24, 36), **options),
        "test": people(range(36, 48), **options),
    }
