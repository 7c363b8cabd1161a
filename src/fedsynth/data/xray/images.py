"""X-rays of one data set as its reader hands them on: grey levels, labels, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt8

from fedsynth.errors import ConfigError, DataError

MULTICLASS, MULTILABEL = "multiclass", "multilabel"


@dataclass(frozen=True, eq=False)
class XrayImages:
    """All images of a data set, in the order of its file.

    Attributes:
        image: Grey levels as stored.
        target: 1 where the image has the class or label. Of a multi-class task one 1 a row.
        classes: Names of the columns of ``target``.
        task: ``multiclass`` or ``multilabel``.
        patient_key: Whose the image is; equal for images of one person, and for no others.
        official_test: The publisher's test images; None if the data set has no such list.
    """

    image: UInt8[np.ndarray, "n h w"]
    target: UInt8[np.ndarray, "n k"]
    classes: tuple[str, ...]
    task: str
    patient_key: Shaped[np.ndarray, " n"]
    official_test: Bool[np.ndarray, " n"] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.image), len(self.target), len(self.patient_key)}
        if len(lengths) > 1 or self.target.shape[1:] != (len(self.classes),):
            raise DataError(
                f"Images {self.image.shape}, targets {self.target.shape} of {len(self.classes)} classes and "
                f"{len(self.patient_key)} patient keys do not agree."
            )
        if self.task == MULTICLASS and (self.target.sum(1) != 1).any():
            raise DataError("Each image of a multi-class task must have exactly one class.")

    def __len__(self) -> int:
        return len(self.image)

    def rows(self, index: np.ndarray) -> XrayImages:
        """Some of the images, in the order of ``index`` (numbers or a mask)."""
        official = None if self.official_test is None else self.official_test[index]
        return XrayImages(
            self.image[index], self.target[index], self.classes, self.task, self.patient_key[index], official
        )

    def label(self) -> Shaped[np.ndarray, "n ..."]:
        """As stages store it: the number of the class (int64), or the row of 0 and 1 (uint8) of a multi-label task."""
        return self.target.argmax(1).astype(np.int64) if self.task == MULTICLASS else self.target

    def patients(self) -> Int64[np.ndarray, " n"]:
        """Patients by number: the place of their key among all keys in order."""
        return np.unique(self.patient_key, return_inverse=True)[1].astype(np.int64)

    def only_classes(self, names: list[str]) -> XrayImages:
        """The images that have at least one of these classes, and no other columns.

        Raises:
            ConfigError: If a name is unknown or named twice, or fewer than two are left.
        """
        unknown = [name for name in names if name not in self.classes]
        if unknown or len(set(names)) != len(names) or len(names) < 2:
            raise ConfigError(
                f"classes must name two or more different ones of {', '.join(self.classes)}, got {names}."
            )
        target = self.target[:, [self.classes.index(name) for name in names]]
        kept = target.any(1)
        return XrayImages(
            self.image[kept],
            target[kept],
            tuple(names),
            self.task,
            self.patient_key[kept],
            None if self.official_test is None else self.official_test[kept],
        )

    def single_label_only(self) -> XrayImages:
        """The images with exactly one label, as the paper trains on [paper: Data]."""
        return self.rows(self.target.sum(1) == 1)


def identical_groups(images: XrayImages) -> list[Int64[np.ndarray, " group"]]:
    """Rows of byte-identical images, one array for each group of two or more.

    They are kept as images; whoever pairs images of a patient should not take two of a group for two exposures.
    """
    flat = np.ascontiguousarray(images.image).reshape(len(images), -1)
    by_content: dict[bytes, list[int]] = {}
    for row, pixels in enumerate(flat):
        by_content.setdefault(pixels.tobytes(), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in by_content.values() if len(rows) > 1]
