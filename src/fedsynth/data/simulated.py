"""Write simulated data sets in the on-disk formats of the real ones, for tests and first steps without a
download.

Everything is marked: the .npz files hold a key "simulated", the WFDB headers a comment SIMULATED, and
`fedsynth.data.sources` reports them as simulated wherever they are found.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from fedsynth.data import phantoms
from fedsynth.data.official import DATASET_NAMES, UNPUBLISHED_NAMES
from fedsynth.errors import ConfigError, DataError

SIMULATION_VERSION = 1  # raise it when the same seed gives other data
PNEUMONIA_SPLITS = {"train": 1200, "val": 200, "test": 200}
CHEST_SPLITS = {"train": 600, "val": 100, "test": 200}


def write_simulated(name: str, directory: str | Path, *, seed: int, size: int) -> Path:
    """Write one simulated data set unless it is there, and return its path; of X-rays with patients, its folder.

    Below ``directory/v<version>-seed<seed>/`` the layout is that of a data directory: ``medmnist/<file>.npz``
    and ``mitdb/``; each set of X-rays with patients has a data directory of its own, named after it. A data set
    appears under its final name only when it is complete. The random streams of the data sets are independent.

    Args:
        name: One of `DATASET_NAMES`.
        directory: Where to write.
        seed: Of the simulation, ≥ 0.
        size: Side of the images in pixels, ≥ 16; ignored for mitdb and for X-rays with patients.

    Raises:
        ConfigError: For an unknown name, a negative seed or a size below 16.
        DataError: If the directory cannot be written.
    """
    if name not in DATASET_NAMES:
        raise ConfigError(f"Unknown data set {name!r}. Known: {', '.join(DATASET_NAMES)}.")
    if seed < 0 or size < 16:
        raise ConfigError(f"Simulation needs seed ≥ 0 and size ≥ 16 pixels, got {seed} and {size}.")
    root = Path(directory).expanduser() / f"v{SIMULATION_VERSION}-seed{seed}"
    file = f"{name}.npz" if size == 28 else f"{name}_{size}.npz"
    is_folder = name == "mitdb" or name in UNPUBLISHED_NAMES
    path = root / name if is_folder else root / "medmnist" / file
    if path.exists():  # before locking: the place may be read-only by now
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.exists():
                _write(name, path, np.random.default_rng([seed, DATASET_NAMES.index(name)]), size)
    except OSError as error:
        raise DataError(
            f"Cannot write simulated data to {path}: {error}. Check space and permissions."
        ) from error
    return path


def _write(name: str, path: Path, rng: np.random.Generator, size: int) -> None:
    """Write into a temporary neighbor, then rename."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        if name == "mitdb" or name in UNPUBLISHED_NAMES:
            _write_folder(name, temporary, rng)
            temporary.chmod(0o755)  # mkdtemp makes it private
            temporary.replace(path)
            return
        content = _pneumonia(rng, size) if name == "pneumoniamnist" else _chest(rng, size)
        np.savez_compressed(temporary / path.name, **content)
        (temporary / path.name).replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_folder(name: str, folder: Path, rng: np.random.Generator) -> None:
    """A data set of several files. Imported here: its format needs a package of its own."""
    if name == "mitdb":
        from fedsynth.data.simulated_ecg import write_records

        write_records(folder, rng)
        return
    from fedsynth.data.xray.simulated import write_xray

    write_xray(name, folder, rng)


def _pneumonia(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """About one normal image in four, as in PneumoniaMNIST; the test split has more normal ones, as there."""
    content: dict[str, Any] = {"simulated": np.array("SIMULATED by fedsynth, not patient data")}
    for split, num in PNEUMONIA_SPLITS.items():
        label = (rng.random(num) < (0.625 if split == "test" else 0.742)).astype(np.uint8)
        label[:4] = (0, 0, 1, 1)
        content[f"{split}_images"] = np.stack([phantoms.pneumonia_image(rng, size, bool(c)) for c in label])
        content[f"{split}_labels"] = label[:, None]
    return content


def _chest(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """14 independent labels of unequal prevalence."""
    num_labels = phantoms.NUM_CHEST_LABELS
    prevalence = np.geomspace(0.25, 0.03, num_labels)
    content: dict[str, Any] = {"simulated": np.array("SIMULATED by fedsynth, not patient data")}
    for split, num in CHEST_SPLITS.items():
        label = (rng.random((num, num_labels)) < prevalence).astype(np.uint8)
        label[:num_labels] |= np.eye(num_labels, dtype=np.uint8)  # every label occurs in every split
        content[f"{split}_images"] = np.stack([phantoms.chest_image(rng, size, row) for row in label])
        content[f"{split}_labels"] = label
    return content
