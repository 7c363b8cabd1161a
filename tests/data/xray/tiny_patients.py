"""Patients and their images in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsynth.data.xray.images import MULTICLASS, XrayImages
from fedsynth.data.xray.patients import Patients


def made_patients(
    sizes: Sequence[int], classes: Sequence[int], official: Sequence[bool] | None = None
) -> Patients:
    """Patient i has ``sizes[i]`` images of ``classes[i]``."""
    num = len(sizes)
    return Patients(
        np.repeat(np.arange(num), sizes),
        np.asarray(sizes, dtype=np.int64),
        np.asarray(classes, dtype=np.int64),
        np.zeros(num, dtype=bool) if official is None else np.asarray(official, dtype=bool),
    )


def made_images(sizes: list[int], classes: list[int], num_classes: int = 3, seed: int = 0) -> XrayImages:
    """Random images: patient i has ``sizes[i]`` of them, all of ``classes[i]``."""
    patient, label = np.repeat(np.arange(len(sizes)), sizes), np.repeat(classes, sizes)
    order = np.random.default_rng(seed).permutation(len(patient))
    pixels = np.random.default_rng(seed + 1).integers(0, 256, (len(patient), 4, 4), dtype=np.uint8)
    target = np.eye(num_classes, dtype=np.uint8)[label[order]]
    names = tuple("abcdefgh"[:num_classes])
    return XrayImages(pixels, target, names, MULTICLASS, np.array([f"p{i:04d}" for i in patient])[order])
