"""Stand-ins for the X-ray data sets with patients, in the very layout of their files.

All are marked SIMULATED. A person keeps the same thorax in every image; pose, exposure, noise and findings differ.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.data import phantoms
from fedsynth.data.xray.kermany import ETIOLOGIES
from fedsynth.data.xray.nih import FINDINGS
from fedsynth.data.xray.source import BY_SOURCE, DATASETS

MARK = "SIMULATED by fedsynth, not patient data"
STORED_SIZE, MEDMNIST_SIZE = 64, 28  # pixels
PEOPLE = {"normal": 300, "bacteria": 330, "virus": 270}
TEST_SHARE = 0.12  # of people, in the publisher's test folder
NIH_PEOPLE = 450
#: Labels of ChestX-ray14 in the order of ChestMNIST.
NIH_LABELS = (
    "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
    "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia",
)  # fmt: skip


def write_xray(name: str, folder: Path, rng: np.random.Generator) -> None:
    """Write the files of one data set below a folder, as they lie below DATA_DIR.

    Args:
        name: Name of a source: "kermany", "nih1000" or "pneumoniamnist_patients".
        folder: Where to write; subfolders are made.
        rng: Source of randomness.
    """
    write: Callable[[list[Path], np.random.Generator], None] = {
        DATASETS["kermany"].source: _kermany,
        DATASETS["nih1000"].source: _nih,
        DATASETS["pneumoniamnist"].source: _pneumoniamnist,
    }[name]
    paths = [folder / file for file in BY_SOURCE[name].files]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    write(paths, rng)


def _kermany(paths: list[Path], rng: np.random.Generator) -> None:
    np.savez_compressed(paths[0], **_children(rng, STORED_SIZE))


def _children(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """About 1,500 images of 900 children, 55 % of them with one image only."""
    images, etiology, key, split = [], [], [], []
    for kind in ETIOLOGIES:
        for person in range(PEOPLE[kind]):
            anatomy, part = int(rng.integers(2**62)), "test" if rng.random() < TEST_SHARE else "train"
            for _ in range(_num_images(rng)):
                images.append(phantoms.child_image(anatomy, rng, size, kind))
                etiology.append(kind)
                key.append(f"{kind}/person{person + 1}")
                split.append(part)
    order = rng.permutation(len(images))
    texts = {"etiology": etiology, "patient_key": key, "split": split}
    return {
        "simulated": np.array(MARK),
        "images": np.stack(images)[order],
        **{name: np.array(values)[order] for name, values in texts.items()},
    }


def _num_images(rng: np.random.Generator) -> int:
    return int(rng.choice([1, 2, 3, 4], p=[0.55, 0.27, 0.13, 0.05]))


def _nih(paths: list[Path], rng: np.random.Generator) -> None:
    """About 1,000 images of 450 people, half of the images without a finding; people keep half of their findings."""
    # The findings that the paper has labels for occur in enough people to be in every split.
    prevalence = np.array([0.16 if name in FINDINGS else 0.06 for name in NIH_LABELS])
    images, labels, patient = [], [], []
    for person in range(NIH_PEOPLE):
        anatomy, usual = int(rng.integers(2**62)), rng.random(len(NIH_LABELS)) < prevalence
        is_ill = rng.random() < 0.75
        for _ in range(_num_images(rng) + int(rng.integers(0, 2))):
            label = (usual & (rng.random(len(NIH_LABELS)) < 0.7) & is_ill).astype(np.uint8)
            images.append(phantoms.person_image(anatomy, rng, STORED_SIZE, label))
            labels.append(label)
            patient.append(person + 1)
    order = rng.permutation(len(images))
    np.savez_compressed(
        paths[0],
        simulated=np.array(MARK),
        images=np.stack(images)[order],
        labels=np.stack(labels)[order],
        label_names=np.array(NIH_LABELS),
        patient_id=np.array(patient, dtype=np.int32)[order],
    )


def _pneumoniamnist(paths: list[Path], rng: np.random.Generator) -> None:
    """Children at 28 pixels; as in MedMNIST one training image in ten is for validation, whoever's it is."""
    children = _children(rng, MEDMNIST_SIZE)
    is_test = children["split"] == "test"
    is_val = ~is_test & (rng.random(len(is_test)) < 0.1)
    content: dict[str, Any] = {"simulated": children["simulated"]}
    rows: list[tuple[str, int, int, str]] = []
    for split, chosen in (("train", ~is_test & ~is_val), ("val", is_val), ("test", is_test)):
        label = (children["etiology"][chosen] != "normal").astype(np.uint8)
        content[f"{split}_images"], content[f"{split}_labels"] = children["images"][chosen], label[:, None]
        keys = children["patient_key"][chosen].tolist()
        rows += [(split, index, int(label[index]), key) for index, key in enumerate(keys)]
    np.savez_compressed(paths[0], **content)
    with paths[1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("split", "index", "label", "patient_key"))
        writer.writerows(rows)
