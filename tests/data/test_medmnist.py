from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from fedsynth.data.medmnist import read_medmnist
from fedsynth.errors import DataError

Arrays = dict[str, np.ndarray]


def _write(path: Path, arrays: Arrays) -> Path:
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def test_reader_returns_what_was_written(tmp_path: Path, npz_arrays: Arrays) -> None:
    data = read_medmnist(_write(tmp_path / "x.npz", npz_arrays))
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(data.images[split], npz_arrays[f"{split}_images"])
        np.testing.assert_array_equal(data.labels[split], npz_arrays[f"{split}_labels"])
        assert data.labels[split].dtype == np.int64


BROKEN = {
    "float pixels": (lambda a: {"train_images": a["train_images"] / 255.0}, "train_images.*float64"),
    "NaN pixels": (lambda a: {"val_images": np.full(a["val_images"].shape, np.nan)}, "val_images.*NaN"),
    "wide pixels": (lambda a: {"test_images": a["test_images"].astype(np.int32)}, "test_images.*int32"),
    "RGB": (lambda a: {"train_images": np.stack([a["train_images"]] * 3, axis=-1)}, "train_images.*RGB"),
    "flat images": (lambda a: {"train_images": a["train_images"].reshape(40, -1)}, "train_images.*shape"),
    "not square": (lambda a: {"train_images": a["train_images"][:, :20]}, "train_images.*square"),
    "empty split": (
        lambda a: {"val_images": a["val_images"][:0], "val_labels": a["val_labels"][:0]},
        "val_images",
    ),
    "another size": (lambda a: {"val_images": a["val_images"][:, :14, :14]}, "val_images.*differ"),
    "missing label": (lambda a: {"val_labels": a["val_labels"][:-1]}, "12 val_images but 11 val_labels"),
    "class 2": (lambda a: {"train_labels": a["train_labels"] * 2}, "train_labels: label 2"),
    "negative label": (
        lambda a: {"train_labels": -a["train_labels"].astype(np.int8)},
        "train_labels: label -1",
    ),
    "float labels": (lambda a: {"train_labels": a["train_labels"] * np.nan}, "train_labels.*float"),
    "no label column": (lambda a: {"train_labels": a["train_labels"][:, :0]}, "train_labels.*shape"),
    "one class": (lambda a: {"test_labels": np.ones_like(a["test_labels"])}, "test_labels: only class 1"),
    "constant images": (
        lambda a: {"train_images": np.zeros_like(a["train_images"])},
        "train_images: every pixel is 0",
    ),
    "objects": (lambda a: {"train_labels": a["train_labels"].astype(object)}, "damaged"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_content_is_a_data_error_naming_file_and_key(
    tmp_path: Path, npz_arrays: Arrays, case: str
) -> None:
    change, message = BROKEN[case]
    path = _write(tmp_path / "x.npz", npz_arrays | change(npz_arrays))
    with pytest.raises(DataError, match=message) as caught:
        read_medmnist(path)
    assert str(path) in str(caught.value)


def test_missing_key_is_named(tmp_path: Path, npz_arrays: Arrays) -> None:
    del npz_arrays["val_labels"]
    with pytest.raises(DataError, match="lacks val_labels"):
        read_medmnist(_write(tmp_path / "x.npz", npz_arrays))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_truncated_archive_is_a_data_error(tmp_path: Path, npz_arrays: Arrays, share: float) -> None:
    whole = _write(tmp_path / "x.npz", npz_arrays).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match=r"cut\.npz"):
        read_medmnist(tmp_path / "cut.npz")


def test_flipped_byte_in_the_pixels_is_a_data_error(tmp_path: Path, npz_arrays: Arrays) -> None:
    content = bytearray(_write(tmp_path / "x.npz", npz_arrays).read_bytes())
    content[len(content) // 3] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"flipped\.npz"):
        read_medmnist(tmp_path / "flipped.npz")


def test_single_array_and_missing_file_are_data_errors(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(DataError, match="single array"):
        read_medmnist(tmp_path / "x.npy")
    with pytest.raises(DataError, match="No MedMNIST file"):
        read_medmnist(tmp_path / "absent.npz")


def test_constant_label_of_a_multi_label_task_is_logged_only(
    tmp_path: Path, npz_arrays: Arrays, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "val", "test"):
        labels = npz_arrays[f"{split}_labels"]
        npz_arrays[f"{split}_labels"] = np.hstack([labels, 0 * labels, 1 - labels])
    with caplog.at_level(logging.WARNING):
        data = read_medmnist(_write(tmp_path / "x.npz", npz_arrays))
    assert data.labels["train"].shape == (40, 3)
    assert "[1]" in caplog.text


def test_images_of_another_size_than_asked_for_are_refused(tmp_path: Path, npz_arrays: Arrays) -> None:
    path = _write(tmp_path / "x.npz", npz_arrays)
    assert read_medmnist(path, 28).images["train"].shape[1:] == (28, 28)
    with pytest.raises(DataError, match=r"x\.npz.*28 x 28.*data\.image_size=64.*data\.image_size=28"):
        read_medmnist(path, 64)


@pytest.mark.real_data
def test_pneumoniamnist_has_its_published_class_counts(real_dir: Path) -> None:
    data = read_medmnist(real_dir / "medmnist" / "pneumoniamnist.npz")
    counts = {split: np.bincount(label[:, 0]).tolist() for split, label in data.labels.items()}
    assert counts == {"train": [1214, 3494], "val": [135, 389], "test": [234, 390]}
