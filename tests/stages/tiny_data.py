"""Small data files in the layout of a data folder: read in milliseconds, and real to the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import wfdb

SIDE = 12
IMAGES = {"train": 96, "val": 24, "test": 32}
NUM_RECORDS = 12


def image_arrays(num_labels: int = 1) -> dict[str, np.ndarray]:
    """A valid MedMNIST file: images whose brightness follows the first label."""
    random = np.random.default_rng(num_labels)
    arrays = {}
    for split, num in IMAGES.items():
        label = (random.random((num, num_labels)) < 0.5).astype(np.uint8)
        label[:2] = np.eye(2, dtype=np.uint8)[:, :1]
        noise = random.integers(0, 160, (num, SIDE, SIDE))
        arrays[f"{split}_images"] = (noise + 60 * label[:, :1, None]).astype(np.uint8)
        arrays[f"{split}_labels"] = label
    return arrays


def write_medmnist(root: Path, name: str = "pneumoniamnist", **changes: np.ndarray) -> Path:
    """``medmnist/<name>.npz``, some arrays replaced; None leaves one out."""
    arrays = {**image_arrays(14 if name == "chestmnist" else 1), **changes}
    path = root / "medmnist" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def write_mitdb(root: Path, symbols: str = "NNNNVNNVNV") -> Path:
    """``mitdb/``: records of one lead with one beat a second, the same symbols in each."""
    folder = root / "mitdb"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(3)
    sample = 360 * np.arange(1, len(symbols) + 1)
    for number in range(100, 100 + NUM_RECORDS):
        signal = random.normal(0, 0.05, (360 * (len(symbols) + 2), 1))
        for position, symbol in zip(sample, symbols, strict=True):
            width = 12 if symbol == "N" else 40
            signal[position - width : position + width, 0] += np.hanning(2 * width)
        wfdb.wrsamp(
            str(number), fs=360, units=["mV"], sig_name=["MLII"], p_signal=signal, fmt=["212"],
            adc_gain=[200], baseline=[0], write_dir=str(folder),
        )  # fmt: skip
        wfdb.wrann(str(number), "atr", sample, symbol=list(symbols), write_dir=str(folder))
    (folder / "RECORDS").write_text("".join(f"{100 + offset}\n" for offset in range(NUM_RECORDS)))
    return folder


def write_data(root: Path) -> Path:
    """All three data sets."""
    write_medmnist(root)
    write_medmnist(root, "chestmnist")
    write_mitdb(root)
    return root
