"""PneumoniaMNIST with the patients of its images.

Yang et al., Scientific Data 2023 (CC BY 4.0). The images are those of Kermany et al. at 28 pixels; whose they are is
not published with them. A table next to the file says so: ``pneumoniamnist_patients.csv``.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedsynth.data.medmnist import SPLITS, read_medmnist
from fedsynth.data.xray.faults import Faults
from fedsynth.data.xray.images import MULTICLASS, XrayImages
from fedsynth.data.xray.kermany import TWO_CLASSES
from fedsynth.data.xray.source import DATASETS
from fedsynth.errors import DataError

COLUMNS = ("split", "index", "label", "patient_key")


def read_pneumoniamnist(path: str | Path, table: str | Path, *, labels: str = "binary") -> XrayImages:
    """All images with their patients; the publisher's test images are marked.

    MedMNIST's training and validation images share patients, so ``split=official`` keeps the test images only and
    divides the others anew. An image without a known patient gets one of its own, unless the very same image (byte by
    byte) has one. A table of another order of images is recognized by its labels and refused.

    Args:
        path: The .npz file.
        table: The .csv of patients.
        labels: ``binary`` (normal, pneumonia) or ``abnormal`` (normal, abnormal: the same under other names).

    Raises:
        DataError: If a file is absent or damaged, or table and images do not agree; all faults in one message.
        KeyError: For an unknown kind of labels.
    """
    data = read_medmnist(path)
    label = {split: data.labels[split][:, 0] for split in SPLITS}
    key = _read_table(Path(table), {split: label[split] for split in SPLITS})
    image = np.concatenate([data.images[split] for split in SPLITS])
    target = np.eye(2, dtype=np.uint8)[np.concatenate([label[split] for split in SPLITS])]
    official = np.concatenate([np.full(len(label[split]), split == "test") for split in SPLITS])
    patient = _name_unknown(np.concatenate([key[split] for split in SPLITS]), image)
    return XrayImages(image, target, TWO_CLASSES[labels], MULTICLASS, patient, official)


def _read_table(path: Path, label: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Patient key of each image by split, '' where unknown."""
    if not path.is_file():
        raise DataError(f"No table of patients at {path}. {DATASETS['pneumoniamnist'].how_to_make}")
    faults = Faults(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            rows = [] if missing else list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read ({error}). {DATASETS['pneumoniamnist'].how_to_make}"
        ) from error
    if missing:
        faults.add(f"column {', '.join(missing)} missing; it has {', '.join(reader.fieldnames or ['none'])}")
    key = {split: np.full(len(values), "", dtype=object) for split, values in label.items()}
    seen = {split: np.zeros(len(values), dtype=int) for split, values in label.items()}
    other_label, outside = 0, 0
    for row in rows:
        split, index = row["split"], row["index"] or ""
        if split not in label or not index.isdecimal() or int(index) >= len(label[split]):
            outside += 1
            continue
        place = int(index)
        seen[split][place] += 1
        key[split][place] = (row["patient_key"] or "").strip()
        other_label += row["label"] != str(int(label[split][place]))
    counts = np.concatenate(list(seen.values()))
    for number, fault in (
        (outside, "rows name no image of the .npz"),
        (
            other_label,
            "rows have another label than their image: the table is for another order of the images",
        ),
        (0 if missing else int((counts == 0).sum()), "images have no row"),
        (int((counts > 1).sum()), "images have several rows"),
    ):
        if number:
            faults.add(f"{number} {fault}")
    faults.raise_if_any(DATASETS["pneumoniamnist"].how_to_make)
    return key


def _name_unknown(key: np.ndarray, image: np.ndarray) -> np.ndarray:
    """A name for each unknown patient: that of the same image elsewhere, else one of its own."""
    known = {pixels.tobytes(): name for pixels, name in zip(image, key, strict=True) if name}
    named = [
        name or known.setdefault(pixels.tobytes(), f"unknown/{row}")
        for row, (pixels, name) in enumerate(zip(image, key, strict=True))
    ]
    return np.array(named)
