"""NIH ChestX-ray14 (Wang et al., CVPR 2017) images with patients, from one .npz of square images.

No restrictions of use; acknowledge the NIH Clinical Center and cite the paper. The labels were mined from reports.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsynth.data.xray.archive import check_images, check_lengths, read_arrays
from fedsynth.data.xray.faults import Faults
from fedsynth.data.xray.images import MULTICLASS, MULTILABEL, XrayImages
from fedsynth.data.xray.source import DATASETS

NO_FINDING = "No Finding"
#: The seven findings of the paper's eight labels, as ChestX-ray14 calls them; the eighth is No Finding.
FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Pneumonia", "Pneumothorax",
)  # fmt: skip
TWO_CLASSES = ("normal", "abnormal")
KEYS = ("images", "labels", "label_names", "patient_id")


def read_nih(path: str | Path, *, labels: str = "eight") -> XrayImages:
    """All images with their labels and patient.

    ``eight`` takes No Finding (none of all labels of the file) and those of the seven other labels of the paper that
    occur; images with none of them, e.g. with a hernia only, are left out. The split of the paper is not in the file.

    Args:
        path: The .npz file.
        labels: ``eight`` (multi-label) or ``abnormal`` (normal: none of the file's labels; abnormal: any).

    Raises:
        DataError: If the file is absent or damaged, or has any fault; all faults in one message.
        ValueError: For an unknown kind of labels.
    """
    if labels not in ("eight", "abnormal"):
        raise ValueError(f"labels must be eight or abnormal, got {labels!r}")
    path = Path(path)
    faults = Faults(path)
    arrays = read_arrays(path, KEYS, faults)
    check_images(arrays, "images", faults)
    check_lengths(arrays, "images", ("labels", "patient_id"), faults)
    _check_labels(arrays, faults)
    if "patient_id" in arrays and not (
        arrays["patient_id"].ndim == 1 and np.issubdtype(arrays["patient_id"].dtype, np.integer)
    ):
        faults.add(f"key patient_id: dtype {arrays['patient_id'].dtype}; one whole number an image is needed")
    faults.raise_if_any(DATASETS["nih1000"].how_to_make)
    label, names = arrays["labels"].astype(np.uint8), [str(name) for name in arrays["label_names"]]
    normal = (1 - label.max(1, keepdims=True)).astype(np.uint8)
    if labels == "abnormal":
        target = np.concatenate([normal, 1 - normal], axis=1)
        return XrayImages(arrays["images"], target, TWO_CLASSES, MULTICLASS, arrays["patient_id"])
    occurring = [name for name in FINDINGS if name in names and label[:, names.index(name)].any()]
    target = np.concatenate([normal, label[:, [names.index(name) for name in occurring]]], axis=1)
    images = XrayImages(arrays["images"], target, (NO_FINDING, *occurring), MULTILABEL, arrays["patient_id"])
    return images.rows(np.flatnonzero(target.sum(1)))


def _check_labels(arrays: dict[str, np.ndarray], faults: Faults) -> None:
    if "labels" not in arrays or "label_names" not in arrays:
        return
    labels, names = arrays["labels"], arrays["label_names"]
    if labels.ndim != 2 or names.ndim != 1 or labels.shape[1] != len(names):
        faults.add(
            f"key labels: shape {labels.shape}; one column for each of {names.size} label_names is needed"
        )
        return
    if (
        not (np.issubdtype(labels.dtype, np.integer) or labels.dtype == bool)
        or ((labels != 0) & (labels != 1)).any()
    ):
        faults.add(
            f"key labels: dtype {labels.dtype}, values {np.unique(labels)[:5].tolist()} …; only 0 and 1 are allowed"
        )
    elif not any(name in FINDINGS and labels[:, index].any() for index, name in enumerate(names.tolist())):
        faults.add(f"key label_names: {', '.join(map(str, names))}; none of {', '.join(FINDINGS)} occurs")
