"""Pediatric chest X-rays of Guangzhou Women and Children's Medical Center, with patients.

Kermany, Zhang and Goldbaum, doi:10.17632/rscbjbr9sj; Kermany et al., Cell 172:1122 (2018); CC BY 4.0. Published as
JPEG files of many sizes; read here from one .npz of square images (see ``fedsynth.data.xray.source``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsynth.data.xray.archive import check_images, check_lengths, check_texts, read_arrays
from fedsynth.data.xray.faults import Faults
from fedsynth.data.xray.images import MULTICLASS, XrayImages
from fedsynth.data.xray.source import DATASETS

ETIOLOGIES = ("normal", "bacteria", "virus")
TWO_CLASSES = {"binary": ("normal", "pneumonia"), "abnormal": ("normal", "abnormal")}
KEYS = ("images", "etiology", "patient_key", "split")


def read_kermany(path: str | Path, *, labels: str = "etiology") -> XrayImages:
    """All images with their etiology and patient.

    Patients are taken from file names (``IM-…``, ``NORMAL2-IM-…``, ``person5_bacteria_…``), which nobody but the
    publisher can check: the same child under two names stays two patients.

    Args:
        path: The .npz file.
        labels: ``etiology`` (normal, bacteria, virus), ``binary`` (normal, pneumonia), or ``abnormal``: the same two
            under the names that ``read_nih`` knows, for experiments on both data sets.

    Raises:
        DataError: If the file is absent or damaged, or has any fault; all faults in one message.
        ValueError: For an unknown kind of labels.
    """
    if labels != "etiology" and labels not in TWO_CLASSES:
        raise ValueError(f"labels must be etiology, binary or abnormal, got {labels!r}")
    path = Path(path)
    faults = Faults(path)
    arrays = read_arrays(path, KEYS, faults)
    check_images(arrays, "images", faults)
    check_lengths(arrays, "images", KEYS[1:], faults)
    check_texts(arrays, "etiology", faults, ETIOLOGIES)
    check_texts(arrays, "patient_key", faults)
    check_texts(arrays, "split", faults, ("train", "val", "test"))
    if "etiology" in arrays:
        _check_classes(arrays["etiology"], labels, faults)
    if not faults.found:
        _check_one_person(arrays["patient_key"], arrays["etiology"], faults)
    faults.raise_if_any(DATASETS["kermany"].how_to_make)
    target = (arrays["etiology"][:, None] == np.array(ETIOLOGIES)).astype(np.uint8)
    classes: tuple[str, ...] = ETIOLOGIES
    if labels != "etiology":
        target, classes = np.stack([target[:, 0], 1 - target[:, 0]], axis=1), TWO_CLASSES[labels]
    # The 16 validation images of the publisher are too few to choose anything by: they count as training images.
    return XrayImages(
        arrays["images"], target, classes, MULTICLASS, arrays["patient_key"], arrays["split"] == "test"
    )


def _check_classes(etiology: np.ndarray, labels: str, faults: Faults) -> None:
    absent = [name for name in ETIOLOGIES if name not in etiology]
    if labels != "etiology" and len(absent) == 1 and absent != ["normal"]:
        return  # one kind of pneumonia is enough
    if absent:
        faults.add(f"key etiology: no image of class {', '.join(absent)}")


def _check_one_person(patient: np.ndarray, etiology: np.ndarray, faults: Faults) -> None:
    """A key with two etiologies shows that the etiology was left out of it: it is then two people."""
    pairs = np.unique(np.stack([patient, etiology.astype(patient.dtype)], axis=1), axis=0)
    keys, count = np.unique(pairs[:, 0], return_counts=True)
    if (count > 1).any():
        faults.add(
            f"key patient_key: {int((count > 1).sum())} keys such as {str(keys[count > 1][0])!r} have several "
            "etiologies; put the etiology into the key, as in bacteria/person5"
        )
