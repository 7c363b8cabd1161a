"""Division of a site's images by person, as PSO-secure sharing divides them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64

from fedsynth.data.cxr_sites.table import LABELS, CxrTable
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import generator

SPLITS = ("train", "val", "test")


def split_rows(
    table: CxrTable,
    *,
    site: str,
    fractions: Sequence[float],
    seed: int,
    max_images: Sequence[int] | None = None,
) -> dict[str, Int64[np.ndarray, " rows"]]:
    """Rows of the table by split; no person is in two of them.

    Fractions are of persons, in random order. Of training and validation images only those with exactly one of the
    eight labels are kept, of test images all.

    Args:
        table: The site.
        site: Its name; sites are divided by independent draws.
        fractions: (0.8, 0.1, 0.1) in the paper's code, (0.7, 0.1, 0.2) in its text.
        seed: Of the order of persons.
        max_images: Most images of each split; whole persons, in their random order, as long as they fit. None: all.

    Raises:
        ConfigError: If the fractions are not three positive numbers with sum 1, or ``max_images`` not three.
        DataError: If a label is missing in a split: it would have no AUROC there.
    """
    if len(fractions) != 3 or min(fractions) <= 0 or not math.isclose(sum(fractions), 1.0, abs_tol=1e-6):
        raise ConfigError(f"split_fractions must be three positive shares with sum 1, got {list(fractions)}.")
    if max_images is not None and (len(max_images) != 3 or min(max_images) < 1):
        raise ConfigError(f"max_images must be three numbers from 1 on, or null, got {max_images}.")
    persons, person = np.unique(table.patient, return_inverse=True)
    stream = generator(seed, "cxr split", site)  # fidelity: cxr-split
    place = np.empty(len(persons), dtype=np.int64)
    place[torch.randperm(len(persons), generator=stream).numpy()] = np.arange(len(persons))
    ends = np.round(np.cumsum(fractions) * len(persons)).astype(np.int64)
    part = np.searchsorted(ends, place, side="right")[person]
    is_single = table.target.sum(1) == 1
    rows = {}
    for number, split in enumerate(SPLITS):
        chosen = (part == number) & (is_single | (split == "test"))
        limit = None if max_images is None else max_images[number]
        rows[split] = _first_persons(np.flatnonzero(chosen), place[person], limit)
    _require_labels(table, rows, site)
    return rows


def _first_persons(rows: np.ndarray, place: np.ndarray, limit: int | None) -> np.ndarray:
    """The rows of as many persons, in their order, as stay within the limit."""
    if limit is None or len(rows) <= limit:
        return rows
    _, inverse, counts = np.unique(place[rows], return_inverse=True, return_counts=True)
    return rows[(np.cumsum(counts) <= limit)[inverse]]


def _require_labels(table: CxrTable, rows: dict[str, np.ndarray], site: str) -> None:
    missing = []
    for split, index in rows.items():
        counts = dict(zip(LABELS, table.target[index].sum(0).tolist(), strict=True))
        lacking = [label for label, count in counts.items() if count == 0]
        if lacking:
            missing.append(f"{', '.join(lacking)} in {split} ({counts})")
    if missing:
        raise DataError(
            f"{site}: no image of {'; '.join(missing)}. Use more images (max_images), other split_fractions or another "
            "split_seed."
        )
