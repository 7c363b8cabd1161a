"""From the folder of a publisher to the train, validation and test images of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from fedsynth.data.cxr_sites.pixels import load_images
from fedsynth.data.cxr_sites.readers import READERS, read_table
from fedsynth.data.cxr_sites.splits import split_rows
from fedsynth.data.cxr_sites.table import LABELS

#: Person numbers of a site are offset by its number times this: no two sites share one. Above those of the small sets.
PERSONS_OF_A_SITE = 10**9
PAPER_FRACTIONS = (0.8, 0.1, 0.1)


@dataclass(frozen=True, eq=False)
class CxrImages:
    """Images of one split of a site, as an image set needs them (task multi-label, classes ``LABELS``).

    Attributes:
        image: Grey levels.
        label: 1 where the image has the label.
        patient: Number of the person, unique over sites.
    """

    image: UInt8[np.ndarray, "n 1 h w"]
    label: UInt8[np.ndarray, "n 8"]
    patient: Int64[np.ndarray, " n"]
    classes: tuple[str, ...] = LABELS


@dataclass(frozen=True, eq=False)
class CxrSite:
    """A site: its images by split, and counts for the notes of a stage."""

    splits: dict[str, CxrImages]
    report: dict[str, Any]


def read_cxr_site(
    name: str,
    root: str | Path,
    *,
    image_size: int,
    split_fractions: Sequence[float] = PAPER_FRACTIONS,
    split_seed: int = 42,
    max_images: Sequence[int] | None = None,
    cache_dir: Path | None = None,
    num_workers: int = 1,
) -> CxrSite:
    """Images of a site in three splits that share no person.

    Args:
        name: ``mimic``, ``chexpert`` or ``chestxray14``.
        root: Its folder as published, see the readers.
        image_size: Side in pixels.
        split_fractions: Shares of persons.
        split_seed: Of the division.
        max_images: Most images of each split; None takes all.
        cache_dir: Where resized images are kept.
        num_workers: Threads that decode.

    Raises:
        ConfigError: For an unknown name, or settings out of range.
        DataError: If lists or images have faults, or a label is missing in a split.
    """
    table = read_table(name, root)
    rows = split_rows(table, site=name, fractions=split_fractions, seed=split_seed, max_images=max_images)
    offset = (1 + list(READERS).index(name)) * PERSONS_OF_A_SITE
    splits = {}
    for split, index in rows.items():
        chosen = table.rows(index)
        image = load_images(
            chosen.root, chosen.path, size=image_size, cache_dir=cache_dir, num_workers=num_workers
        )
        splits[split] = CxrImages(image[:, None], chosen.target, chosen.patient + offset)
    return CxrSite(splits, {"dropped": table.dropped, "splits": _counts(splits)})


def _counts(splits: dict[str, CxrImages]) -> dict[str, Any]:
    counts = {}
    for split, images in splits.items():
        _, of_person = np.unique(images.patient, return_counts=True)
        counts[split] = {
            "images": len(images.image),
            "patients": len(of_person),
            "patients_with_several_images": int((of_person > 1).sum()),
            "largest_patient": int(of_person.max()),
            "classes": dict(zip(LABELS, images.label.sum(0).tolist(), strict=True)),
        }
    return counts
