"""Patients of a data set as the units that splits and sites are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64

from fedsynth.data.xray.images import XrayImages

MIN_STRATUM = 10  # patients


@dataclass(frozen=True, eq=False)
class Patients:
    """One entry a patient.

    Attributes:
        row_patient: For each image the place of its patient in the arrays below.
        num_images: Images of each.
        main_class: The class each counts for when patients are drawn class by class: the rarest in the whole data set
            of those that the patient's images have. With one etiology a patient, that one.
        official_test: Whether the publisher tests on them; all False where there is no such list.
    """

    row_patient: Int64[np.ndarray, " n"]
    num_images: Int64[np.ndarray, " patient"]
    main_class: Int64[np.ndarray, " patient"]
    official_test: Bool[np.ndarray, " patient"]

    def __len__(self) -> int:
        return len(self.num_images)

    def stratum(self, members: Bool[np.ndarray, " patient"]) -> Int64[np.ndarray, " patient"]:
        """Patients alike in class, in having one image or several, and in the publisher's split.

        Several images are a stratum of their own, so that every part has pairs of one person to learn from or test on;
        not in classes with few members, where dealing the class evenly matters more.

        Args:
            members: Those who are dealt; the numbers of others mean nothing.
        """
        group = self.main_class * 2 + self.official_test
        has_several = (self.num_images > 1).astype(np.int64)
        for value in np.unique(group):
            inside = group == value
            if np.bincount(has_several[inside & members], minlength=2).min() < MIN_STRATUM:
                has_several[inside] = 0
        return group * 2 + has_several


def patients_of(images: XrayImages) -> Patients:
    """The patients of these images, in order of their keys."""
    row_patient = images.patients()
    num = int(row_patient.max()) + 1
    rarity = np.argsort(np.argsort(images.target.sum(0), kind="stable"), kind="stable")  # 0: the rarest class
    # Rank of the rarest class of each image, then of each patient; an image without any label counts for the last.
    of_image = np.where(images.target > 0, rarity, len(rarity) - 1).min(1)
    rarest = np.full(num, len(rarity) - 1)
    np.minimum.at(rarest, row_patient, of_image)
    official = np.zeros(num, dtype=bool)
    if images.official_test is not None:
        official[row_patient[images.official_test]] = True
    return Patients(
        row_patient,
        np.bincount(row_patient, minlength=num),
        np.argsort(rarity)[rarest].astype(np.int64),
        official,
    )


def shuffled(num: int, generator: torch.Generator) -> Int64[np.ndarray, " n"]:
    """The numbers below ``num`` in random order."""
    return torch.randperm(num, generator=generator).numpy()
