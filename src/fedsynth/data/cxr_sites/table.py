"""The images of a site that PSO-secure sharing uses, before any of them is opened.

The eight labels and what becomes of other cells follow the paper's preprocessing: only frontal views, uncertain counts
as absent, labels outside the eight (Support Devices among them) do not count, and images with none of the eight are
dropped. What was dropped, and why, is counted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int64, UInt8

from fedsynth.errors import DataError

#: In the order of the paper's tables.
LABELS = (
    "No Finding", "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural Effusion", "Pneumonia",
    "Pneumothorax",
)  # fmt: skip
FRONTAL = ("AP", "PA")


@dataclass(frozen=True, eq=False)
class CxrTable:
    """Images of one site.

    Attributes:
        root: Folder that ``path`` starts from.
        path: File of each image.
        patient: The publisher's number of the person.
        target: 1 where the image has the label, in the order of ``LABELS``.
        dropped: Rows of the lists that are no images here, by reason.
    """

    root: Path
    path: tuple[str, ...]
    patient: Int64[np.ndarray, " n"]
    target: UInt8[np.ndarray, "n 8"]
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.path)

    def is_on_disk(self) -> Bool[np.ndarray, " n"]:
        """Whether the file of each image is there."""
        root = os.fspath(self.root)
        return np.array([os.path.isfile(os.path.join(root, path)) for path in self.path], dtype=bool)

    def rows(self, index: np.ndarray) -> CxrTable:
        """Some of the images, in the order of ``index`` (numbers)."""
        path = tuple(self.path[row] for row in index)
        return CxrTable(self.root, path, self.patient[index], self.target[index], self.dropped)


def read_list(root: Path, names: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """The first of these files that is there, plain or gzipped, all cells as text and blanks as ''.

    Raises:
        DataError: If none is there, it cannot be read, or lacks a column.
    """
    candidates = [root / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise DataError(
            f"{root} holds none of {', '.join(candidate.name for candidate in candidates)}. Point the folder at the "
            "data set as published, with its lists and folders of images."
        )
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, EOFError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{path} cannot be read: {error}. Fetch it again.") from error
    lacking = [name for name in columns if name not in table.columns]
    if lacking:
        raise DataError(
            f"{path} lacks the columns {', '.join(lacking)}; it has {', '.join(map(str, table.columns))}. "
            "Is it the list as published?"
        )
    return table


def findings(table: pd.DataFrame, source: str) -> UInt8[np.ndarray, "n 8"]:
    """Labels of a CheXpert-style list: 1.0 present; 0.0, -1.0 (uncertain) and blank absent.

    Args:
        table: Cells as text, one column a label.
        source: The list, for messages.

    Raises:
        DataError: For another value, with the column and how often it occurs.
    """
    columns = []
    for name in LABELS:
        values = table[name].replace("", "0")
        numbers = pd.to_numeric(values, errors="coerce")
        wrong = ~numbers.isin([-1, 0, 1])
        if wrong.any():
            raise DataError(
                f"{source}: column {name} holds {int(wrong.sum())} values other than 1, 0, -1 and blank, such as "
                f"{values[wrong].iloc[0]!r}."
            )
        columns.append((numbers == 1).to_numpy(np.uint8))  # fidelity: cxr-uncertain
    return np.stack(columns, axis=1)


def numbers(values: pd.Series, what: str) -> Int64[np.ndarray, " n"]:
    """Whole numbers written as text.

    Raises:
        DataError: For a cell that is none.
    """
    parsed = pd.to_numeric(values, errors="coerce")
    wrong = parsed.isna() | (parsed % 1 != 0)
    if wrong.any():
        raise DataError(
            f"{what} must be a whole number, got {values[wrong].iloc[0]!r} in {int(wrong.sum())} rows."
        )
    return parsed.to_numpy(np.int64)


def keep(
    root: Path,
    path: pd.Series,
    patient: np.ndarray,
    target: np.ndarray,
    is_frontal: np.ndarray,
    dropped: dict[str, int],
) -> CxrTable:
    """The frontal images with at least one of the labels, by ascending path, with counts of the others.

    Raises:
        DataError: If none is left, or a path occurs twice.
    """
    has_label = target.any(1)
    kept = np.flatnonzero(is_frontal & has_label)
    counts = {
        **dropped,
        "not frontal": int((~is_frontal).sum()),
        "none of the eight labels": int((is_frontal & ~has_label).sum()),
    }
    names = path.to_numpy()[kept]
    if len(set(names)) != len(names):
        raise DataError(
            f"{root}: {len(names) - len(set(names))} images are listed twice. Is the list as published?"
        )
    if not len(kept):
        raise DataError(f"{root}: no frontal image (AP, PA) has any of the labels. Left out: {counts}.")
    order = kept[np.argsort(names, kind="stable")]
    return CxrTable(root, tuple(path.to_numpy()[order]), patient[order], target[order], counts)
