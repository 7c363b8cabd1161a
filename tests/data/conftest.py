"""Small data sets in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsynth.data.medmnist import MedMNISTData
from fedsynth.data.mitbih import Beats
from fedsynth.data.simulated import write_simulated

SIMULATED_NAMES = ("pneumoniamnist", "chestmnist", "mitdb")


@pytest.fixture(scope="session")
def simulated_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for `write_simulated` that already holds seed 0."""
    root = tmp_path_factory.mktemp("simulated")
    for name in SIMULATED_NAMES:
        write_simulated(name, root, seed=0, size=28)
    return root


@pytest.fixture(scope="session")
def simulated_dir(simulated_root: Path) -> Path:
    """The simulated data directory itself (medmnist/, mitdb/)."""
    return next(simulated_root.glob("v*-seed0"))


@pytest.fixture(scope="session")
def real_dir(data_dir: Path) -> Path:
    """DATA_DIR, if it holds the real data sets these tests read."""
    for needed in (data_dir / "mitdb" / "RECORDS", data_dir / "medmnist" / "pneumoniamnist.npz"):
        if not needed.is_file():
            pytest.skip(f"{needed} is absent")
    return data_dir


@pytest.fixture
def npz_arrays() -> dict[str, np.ndarray]:
    """The content of a valid MedMNIST file."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, num in (("train", 40), ("val", 12), ("test", 16)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (num, 28, 28), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(num) % 4 > 0).astype(np.uint8)[:, None]
    return arrays


@pytest.fixture
def images(npz_arrays: dict[str, np.ndarray]) -> MedMNISTData:
    splits = ("train", "val", "test")
    return MedMNISTData(
        {split: npz_arrays[f"{split}_images"] for split in splits},
        {split: npz_arrays[f"{split}_labels"].astype(np.int64) for split in splits},
    )


@pytest.fixture
def beats() -> Beats:
    """12 records of 10 beats, a third of them abnormal, records 201 and 202 among them."""
    numbers = [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 201, 202]
    record = np.repeat(numbers, 10)
    label = np.tile((np.arange(10) % 3 == 0).astype(np.int64), len(numbers))
    window = np.random.default_rng(1).normal(size=(len(record), 256)).astype(np.float32)
    sample = np.tile(np.arange(10) * 300 + 200, len(numbers))
    symbol = np.where(label == 1, "V", "N")
    return Beats(record, sample, symbol, label, window, {"not a beat": 3}, dict.fromkeys(numbers, "MLII"))
