"""Read MedMNIST .npz files (Yang et al., Scientific Data 2023) and check what they promise."""

from __future__ import annotations

import logging
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from fedsynth.errors import DataError

logger = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class MedMNISTData:
    """The official splits of one greyscale data set, keyed "train", "val", "test"."""

    images: dict[str, UInt8[np.ndarray, "n h w"]]
    """Grey values 0..255, as stored."""
    labels: dict[str, Int64[np.ndarray, "n num_labels"]]
    """0 or 1; one column for a binary task, 14 for ChestMNIST."""


def read_medmnist(path: str | Path, size: int | None = None) -> MedMNISTData:
    """Read one MedMNIST file with greyscale images and 0/1 labels.

    Accepts any extra keys. A binary (one-column) task must hold both classes in every split; of a multi-label
    task, a label that is constant in training is only logged, because its effect depends on the loss.

    Not covered: RGB and 3-D members of MedMNIST, and multi-class labels.

    Args:
        path: The .npz file.
        size: Side of the images in pixels, where it matters; None takes any.

    Raises:
        DataError: If the file is missing, damaged, lacks a key, or a key has an unexpected dtype, shape or
            value; the message names file and key.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"No MedMNIST file at {path}. Set DATA_DIR, download it, or use simulated data.")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path} is a single array, not a MedMNIST .npz archive.")
        with archive:
            wanted = [f"{split}_{part}" for split in SPLITS for part in ("images", "labels")]
            missing = [key for key in wanted if key not in archive.files]
            if missing:
                raise DataError(
                    f"{path} lacks {', '.join(missing)}; it holds {', '.join(archive.files) or 'nothing'}."
                )
            arrays = {key: archive[key] for key in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise DataError(
            f"{path} is truncated or damaged ({error}). Delete it and download it again."
        ) from error
    images = {split: _check_images(path, f"{split}_images", arrays[f"{split}_images"]) for split in SPLITS}
    labels = {split: _check_labels(path, f"{split}_labels", arrays[f"{split}_labels"]) for split in SPLITS}
    _check_agreement(path, images, labels)
    side = images["train"].shape[1]
    if size is not None and side != size:
        raise DataError(
            f"{path}, key train_images: images of {side} x {side} pixels, but data.image_size={size}. "
            f"Say data.image_size={side}, or use a file of {size} x {size} pixels."
        )
    return MedMNISTData(images, labels)


def _check_images(path: Path, key: str, array: Any) -> UInt8[np.ndarray, "n h w"]:
    where = f"{path}, key {key}"
    if array.ndim == 4:
        raise DataError(
            f"{where}: RGB images of shape {array.shape}; greyscale [n, h, w] is needed. "
            "Convert them, or choose a greyscale data set."
        )
    if array.ndim != 3 or array.shape[1] != array.shape[2] or 0 in array.shape:
        raise DataError(
            f"{where}: shape {array.shape}; square greyscale images [n, h, h] with n ≥ 1 are needed."
        )
    if array.dtype != np.uint8:
        has_nan = np.issubdtype(array.dtype, np.floating) and bool(np.isnan(array).any())
        nan_note = " with NaN pixels" if has_nan else ""
        raise DataError(f"{where}: dtype {array.dtype}{nan_note}; uint8 grey values 0..255 are needed.")
    return array


def _check_labels(path: Path, key: str, array: Any) -> Int64[np.ndarray, "n num_labels"]:
    where = f"{path}, key {key}"
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] == 0:
        raise DataError(f"{where}: shape {array.shape}; labels [n, num_labels] are needed.")
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
        raise DataError(f"{where}: dtype {array.dtype}; integer labels are needed.")
    outside = array[(array != 0) & (array != 1)]
    if outside.size:
        raise DataError(
            f"{where}: label {outside[0]}; only 0 and 1 are allowed (multi-class sets are not covered)."
        )
    return array.astype(np.int64)


def _check_agreement(path: Path, images: dict[str, np.ndarray], labels: dict[str, np.ndarray]) -> None:
    """Splits agree with each other, images with labels, and both classes occur."""
    train = images["train"].shape[1:], labels["train"].shape[1:]
    for split in SPLITS:
        if len(images[split]) != len(labels[split]):
            raise DataError(
                f"{path}: {len(images[split])} {split}_images but {len(labels[split])} {split}_labels."
            )
        if (images[split].shape[1:], labels[split].shape[1:]) != train:
            raise DataError(
                f"{path}: {split}_images/labels of shape {images[split].shape}/{labels[split].shape} differ "
                "from train."
            )
        if labels[split].shape[1] == 1 and len(np.unique(labels[split])) < 2:
            raise DataError(
                f"{path}, key {split}_labels: only class {labels[split][0, 0]} occurs; both are needed."
            )
    pixels = images["train"]
    if pixels.min() == pixels.max():
        raise DataError(
            f"{path}, key train_images: every pixel is {pixels.min()}; such images cannot be standardized. "
            "Download it again."
        )
    positives = labels["train"].sum(axis=0)
    constant = np.flatnonzero((positives == 0) | (positives == len(labels["train"])))
    if constant.size:
        logger.warning(
            "%s: labels %s are constant in training; their class ratio is 0 or ∞.", path, constant.tolist()
        )
