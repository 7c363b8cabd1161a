"""Train, validation and test images that share no patient, with the classes in equal parts as far as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int64

from fedsynth.data.xray.patients import Patients, shuffled
from fedsynth.errors import ConfigError

SPLITS = ("train", "val", "test")
LEFT_OUT = -1


def split_patients(
    patients: Patients,
    chosen: Bool[np.ndarray, " patient"],
    *,
    fractions: Sequence[float],
    official: bool,
    generator: torch.Generator,
) -> Int64[np.ndarray, " patient"]:
    """Split of each chosen patient: 0 train, 1 validation, 2 test; −1 for those not chosen.

    Fractions are of images. Stratum by stratum (class, one image or several) the patients come in random order, and
    each goes to the split that lags most behind its share of the images dealt so far, so that no split is given the
    large patients first. In each stratum a split misses its share by less than the images of its largest patient
    times the number of splits.

    Args:
        patients: All patients of the data set.
        chosen: Those to split, e.g. of one site.
        fractions: Shares of train, validation and test; positive, sum 1.
        official: Keep the publisher's test patients as test, and divide the others into train and validation in the
            ratio of the first two fractions.
        generator: Source of randomness.

    Raises:
        ConfigError: If the fractions are not three positive numbers with sum 1.
    """
    if len(fractions) != 3 or min(fractions) <= 0 or not math.isclose(sum(fractions), 1.0, abs_tol=1e-6):
        raise ConfigError(f"split_fractions must be three positive shares with sum 1, got {list(fractions)}.")
    split = np.full(len(patients), LEFT_OUT, dtype=np.int64)
    shares = np.asarray(fractions, dtype=np.float64)
    stratum = patients.stratum(chosen)
    order = shuffled(len(patients), generator)
    for value in np.unique(stratum[chosen]):
        members = order[(stratum[order] == value) & chosen[order]]
        if official and len(members) and patients.official_test[members[0]]:
            split[members] = 2
            continue
        wanted = shares[:2] / shares[:2].sum() if official else shares
        split[members] = _deal(patients.num_images[members], wanted)
    return split


def _deal(num_images: Int64[np.ndarray, " m"], shares: np.ndarray) -> Int64[np.ndarray, " m"]:
    """Part of each patient, in the order given; parts are filled evenly all along."""
    held, dealt = np.zeros(len(shares)), 0
    part = np.empty(len(num_images), dtype=np.int64)
    for place, images in enumerate(num_images):
        dealt += int(images)
        lag = shares * dealt - held
        empty = held == 0
        # The last patients of a small stratum go to parts that would otherwise have none of it.
        if len(num_images) - place <= int(empty.sum()):
            lag = np.where(empty, lag, -np.inf)
        part[place] = int(lag.argmax())
        held[part[place]] += images
    return part


def limit_images(
    patients: Patients,
    members: Bool[np.ndarray, " patient"],
    max_images: int,
    generator: torch.Generator,
) -> Bool[np.ndarray, " patient"]:
    """Which of these patients to keep so that they have no more than ``max_images`` images together.

    Whole patients are taken in an order that runs evenly through all strata; one that no longer fits is skipped.

    Raises:
        ConfigError: If ``max_images`` is below 1.
    """
    if max_images < 1:
        raise ConfigError(f"max_images must be at least 1 image a split, got {max_images}.")
    stratum = patients.stratum(members)
    order = shuffled(len(patients), generator)
    place = np.empty(len(patients))
    for value in np.unique(stratum[members]):
        inside = order[(stratum[order] == value) & members[order]]
        place[inside] = (np.arange(len(inside)) + 0.5) / len(inside)
    kept, total = np.zeros(len(patients), dtype=bool), 0
    candidates = order[members[order]]
    for patient in candidates[np.argsort(place[candidates], kind="stable")]:
        if total + patients.num_images[patient] <= max_images:
            kept[patient], total = True, total + int(patients.num_images[patient])
    return kept
