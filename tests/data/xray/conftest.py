"""Small X-ray files in the layouts of the real ones, and images in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsynth.data.simulated import write_simulated
from fedsynth.data.xray.images import XrayImages

sys.path.insert(0, str(Path(__file__).parent))

SIDE = 16


@pytest.fixture
def kermany_arrays() -> dict[str, np.ndarray]:
    """36 images of 24 children: 8 a class, each third of them with two images."""
    rng = np.random.default_rng(0)
    children = [(kind, person) for kind in ("normal", "bacteria", "virus") for person in range(8)]
    rows = [child for child in children for _ in range(2 if child[1] % 2 else 1)]
    return {
        "images": rng.integers(0, 256, (len(rows), SIDE, SIDE), dtype=np.uint8),
        "etiology": np.array([kind for kind, _ in rows]),
        "patient_key": np.array([f"{kind}/person{person}" for kind, person in rows]),
        "split": np.array(["test" if person == 7 else "train" for _, person in rows]),
    }


@pytest.fixture
def nih_arrays() -> dict[str, np.ndarray]:
    """60 images of 20 people with four labels, one of which (Hernia) is none of the paper's eight."""
    rng = np.random.default_rng(1)
    labels = (rng.random((60, 4)) < 0.3).astype(np.uint8)
    labels[:5] = [[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]]
    return {
        "images": rng.integers(0, 256, (60, SIDE, SIDE), dtype=np.uint8),
        "labels": labels,
        "label_names": np.array(["Atelectasis", "Effusion", "Edema", "Hernia"]),
        "patient_id": np.repeat(np.arange(20, dtype=np.int32), 3) + 100,
    }


@pytest.fixture
def write_npz(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def write(arrays: dict[str, Any]) -> Path:
        np.savez(tmp_path / "images.npz", **arrays)
        return tmp_path / "images.npz"

    return write


@pytest.fixture
def many_images() -> XrayImages:
    """400 patients of three unequal classes, a third of them with 2 to 5 images."""
    from tiny_patients import made_images

    rng = np.random.default_rng(3)
    sizes = np.where(rng.random(400) < 0.33, rng.integers(2, 6, 400), 1).tolist()
    return made_images(sizes, rng.choice(3, 400, p=[0.5, 0.3, 0.2]).tolist())


@pytest.fixture(scope="session")
def simulated_xray(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the three simulated data sets."""
    root = tmp_path_factory.mktemp("simulated_xray")
    names = ("kermany", "nih1000", "pneumoniamnist_patients")
    return {name: write_simulated(name, root, seed=0, size=28) for name in names}
