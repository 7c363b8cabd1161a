"""Copies of the three publishers' layouts with tiny images, and what must be read from them."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedsynth.data.cxr_sites.table import LABELS

#: Columns of CheXpert's labeler; Support Devices and others are none of the eight.
CHEXPERT_COLUMNS = (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture", "Lung Lesion",
    "Lung Opacity", "No Finding", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices",
)  # fmt: skip


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_image(path: Path, value: int, *, size: tuple[int, int] = (40, 30), mode: str = "L") -> None:
    """One grey value all over; width by height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size[::-1], value, dtype=np.uint8)).convert(mode).save(path)


def cells(**labels: str) -> list[str]:
    """The labeler's cells of a study; names with underscores for blanks."""
    given = {name.replace("_", " "): value for name, value in labels.items()}
    return [given.get(name, "") for name in CHEXPERT_COLUMNS]


def one_label(number: int) -> dict[str, str]:
    return {LABELS[number % len(LABELS)].replace(" ", "_"): "1.0"}


def write_mimic(root: Path, studies: Sequence[tuple[int, int, str, dict[str, str] | None]]) -> None:
    """Studies of one image each: (subject, study, view, cells or None for a study without labels)."""
    labels, images = [], []
    for subject, study, view, given in studies:
        if given is not None:
            labels.append([subject, study, *cells(**given)])
        images.append([f"d{study}", subject, study, "CHEST (PA AND LAT)", view, 3056, 2544, 21800506])
        folder = root / "files" / f"p{str(subject)[:2]}" / f"p{subject}" / f"s{study}"
        write_image(folder / f"d{study}.jpg", study % 200)
    write_csv(root / "mimic-cxr-2.0.0-chexpert.csv.gz", ["subject_id", "study_id", *CHEXPERT_COLUMNS], labels)
    header = [
        "dicom_id", "subject_id", "study_id", "PerformedProcedureStepDescription", "ViewPosition", "Rows", "Columns",
        "StudyDate",
    ]  # fmt: skip
    write_csv(root / "mimic-cxr-2.0.0-metadata.csv.gz", header, images)


def write_chexpert(
    root: Path, images: Sequence[tuple[int, str, str, dict[str, str]]], *, name: str = "CheXpert-v1.0-small"
) -> None:
    """Images (patient, Frontal or Lateral, AP or PA, cells), one study each."""
    rows = []
    for number, (patient, side, view, given) in enumerate(images):
        path = f"train/patient{patient:05d}/study{number}/view1_{side.lower()}.jpg"
        rows.append([f"{name}/{path}", "Female", 60, side, view, *cells(**given)])
        write_image(root / path, number % 200)
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT_COLUMNS]
    write_csv(root / "train.csv", header, rows)


def write_chestxray14(
    root: Path, images: Sequence[tuple[int, str, str]], *, folders: Sequence[str] = ("images",)
) -> None:
    """Images (patient, findings, view), dealt to the folders in turn."""
    rows = []
    for number, (patient, findings, view) in enumerate(images):
        name = f"{patient:08d}_{number:03d}.png"
        rows.append([name, findings, number, patient, "058Y", "M", view, 2682, 2749, 0.143, 0.143])
        write_image(root / folders[number % len(folders)] / name, number % 200)
    header = [
        "Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender", "View Position",
        "OriginalImage[Width", "Height]", "OriginalImagePixelSpacing[x", "y]",
    ]  # fmt: skip
    write_csv(root / "Data_Entry_2017.csv", header, rows)
