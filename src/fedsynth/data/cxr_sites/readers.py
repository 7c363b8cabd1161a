"""The lists of the three publishers, each in its own layout, as one form of table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsynth.data.cxr_sites.table import FRONTAL, LABELS, CxrTable, findings, keep, numbers, read_list
from fedsynth.errors import ConfigError, DataError

#: As ChestX-ray14 calls it.
RENAMED = {"Effusion": "Pleural Effusion"}


def read_mimic(root: str | Path) -> CxrTable:
    """MIMIC-CXR-JPG 2.0.0 (Johnson et al. 2019; credentialed access through PhysioNet).

    Labels are CheXpert's of the report of a study and hold for all its images. Folders:
    ``files/p10/p10000032/s50414267/DICOM.jpg``. Images of a study without labels are dropped.

    Args:
        root: With ``mimic-cxr-2.0.0-chexpert.csv.gz``, ``mimic-cxr-2.0.0-metadata.csv.gz`` and ``files/``.

    Raises:
        DataError: If a list is missing or has faults.
    """
    root = Path(root)
    labels = read_list(root, ["mimic-cxr-2.0.0-chexpert.csv"], ["subject_id", "study_id", *LABELS])
    images = read_list(
        root, ["mimic-cxr-2.0.0-metadata.csv"], ["dicom_id", "subject_id", "study_id", "ViewPosition"]
    )
    key = ["subject_id", "study_id"]
    twice = labels.duplicated(key)
    if twice.any():
        raise DataError(
            f"{root}: {int(twice.sum())} studies have two rows of labels. Is the list as published?"
        )
    joined = images.merge(labels[[*key, *LABELS]], on=key, how="inner")
    subject, study = joined["subject_id"].str.strip(), joined["study_id"].str.strip()
    path = "files/p" + subject.str[:2] + "/p" + subject + "/s" + study + "/" + joined["dicom_id"] + ".jpg"
    return keep(
        root,
        path,
        numbers(subject, "subject_id"),
        findings(joined, "mimic-cxr-2.0.0-chexpert.csv"),
        joined["ViewPosition"].str.strip().isin(FRONTAL).to_numpy(),
        {"study without labels": len(images) - len(joined)},
    )


def read_chexpert(root: str | Path) -> CxrTable:
    """CheXpert 1.0 (Irvin et al. 2019), its training list; the publisher's validation images are not used.

    Args:
        root: The folder ``CheXpert-v1.0`` (or ``CheXpert-v1.0-small``) with ``train.csv`` and ``train/``.

    Raises:
        DataError: If the list is missing or has faults.
    """
    root = Path(root)
    table = read_list(root, ["train.csv"], ["Path", "Frontal/Lateral", "AP/PA", *LABELS])
    # Paths begin with the name that the folder had when it was published.
    path = table["Path"].str.replace(r"^CheXpert-v1\.0[^/]*/", "", regex=True)
    patient = path.str.extract(r"/patient(\d+)/", expand=False)
    if patient.isna().any():
        raise DataError(f"{root / 'train.csv'}: no patient in the path {path[patient.isna()].iloc[0]!r}.")
    is_frontal = (table["Frontal/Lateral"].str.strip() == "Frontal") & table["AP/PA"].str.strip().isin(
        FRONTAL
    )
    return keep(
        root, path, numbers(patient, "patient"), findings(table, "train.csv"), is_frontal.to_numpy(), {}
    )


def read_chestxray14(root: str | Path) -> CxrTable:
    """NIH ChestX-ray14 (Wang et al. 2017), called CXR8 by the paper.

    Args:
        root: With ``Data_Entry_2017.csv`` (or ``Data_Entry_2017_v2020.csv``) and the images in ``images/`` or
            ``images_001/images/`` … as the archives unpack.

    Raises:
        DataError: If the list is missing or has faults.
    """
    root = Path(root)
    names = ["Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv"]
    table = read_list(root, names, ["Image Index", "Finding Labels", "Patient ID", "View Position"])
    image = table["Image Index"].str.strip()
    path = image.map(_image_places(root)).fillna("images/" + image)
    found = [
        {RENAMED.get(one.strip(), one.strip()) for one in text.split("|")} for text in table["Finding Labels"]
    ]
    target = np.array([[label in names for label in LABELS] for names in found], dtype=np.uint8)
    return keep(
        root,
        path,
        numbers(table["Patient ID"], "Patient ID"),
        target,
        table["View Position"].str.strip().isin(FRONTAL).to_numpy(),
        {},
    )


def _image_places(root: Path) -> dict[str, str]:
    """Every image file by its name, as a path below the root."""
    places: dict[str, str] = {}
    folders = [path for path in sorted(root.glob("images*")) if path.is_dir()]
    for folder in [*folders, *(path / "images" for path in folders if (path / "images").is_dir())]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.lower().endswith(".png"):
                    places[entry.name] = Path(entry.path).relative_to(root).as_posix()
    return places


#: By the name that settings use.
# fidelity: cxr-reader
READERS: Mapping[str, Callable[[str | Path], CxrTable]] = {
    "mimic": read_mimic,
    "chexpert": read_chexpert,
    "chestxray14": read_chestxray14,
}


def read_listed(name: str, root: str | Path) -> CxrTable:
    """The table of a site as its lists say, whether the images are there or not.

    Raises:
        ConfigError: For an unknown name.
        DataError: If the folder is missing, or its lists have faults.
    """
    if name not in READERS:
        raise ConfigError(f"dataset must be one of {', '.join(READERS)}, got {name!r}.")
    if not Path(root).is_dir():
        raise DataError(
            f"There is no folder {root} for {name}. Access is by the publisher only (PhysioNet, Stanford AIMI, NIH "
            "Clinical Center); unpack the data set and point the folder at it."
        )
    return READERS[name](root)


def read_table(name: str, root: str | Path) -> CxrTable:
    """The images of a site that are there, with the number of those that are only listed as ``no file``.

    Raises:
        ConfigError: For an unknown name.
        DataError: If the folder is missing, its lists have faults, or no listed image is there.
    """
    listed = read_listed(name, root)
    there = listed.is_on_disk()
    if not there.any():
        raise DataError(
            f"{root} holds none of the {len(listed)} listed images of {name}, such as {listed.path[0]}. Unpack the "
            "archives with their folders."
        )
    found = listed.rows(np.flatnonzero(there))
    return replace(found, dropped={**found.dropped, "no file": int((~there).sum())})
