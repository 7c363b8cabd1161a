"""Where the public data sets live, what they are licensed under, and their published digests.

Copied facts, not code: MedMNIST addresses and MD5 sums are those of the medmnist package's own INFO table (a
test compares the two; importing medmnist itself would import torch), MIT-BIH digests come from PhysioNet.
"""

from __future__ import annotations

from dataclasses import dataclass

MEDMNIST_SIZES = (28, 64, 128, 224)  # pixels
DOWNLOADED_NAMES = ("pneumoniamnist", "chestmnist", "mitdb")  # below DATA_DIR, can be downloaded
UNPUBLISHED_NAMES = (
    "kermany",
    "nih1000",
    "pneumoniamnist_patients",
)  # below DATA_DIR, made by the user of public data
DATASET_NAMES = (
    DOWNLOADED_NAMES + UNPUBLISHED_NAMES
)  # append only: the place decides the stream of a simulation
CORPUS_NAMES = ("edaic",)  # under a licence, never downloaded; each has a root of its own

_ZENODO = "https://zenodo.org/records/10519652/files"
_MEDMNIST_MD5 = {
    ("pneumoniamnist", 28): "28209eda62fecd6e6a2d98b1501bb15f",
    ("pneumoniamnist", 64): "8f4eceb4ccffa70c672198ea285246c6",
    ("pneumoniamnist", 128): "05b46931834c231683c68f40c47b2971",
    ("pneumoniamnist", 224): "d6a3c71de1b945ea11211b03746c1fe1",
    ("chestmnist", 28): "02c8a6516a18b556561a56cbdd36c4a8",
    ("chestmnist", 64): "9de6cd0b934ebb5b7426cfba5efbae16",
    ("chestmnist", 128): "db107e5590b27930b62dbaf558aebee3",
    ("chestmnist", 224): "45bd33e6f06c3e8cdb481c74a89152aa",
}

MITDB_URL = "https://physionet.org/files/mitdb/1.0.0/"
MITDB_SUMS_SHA256 = "b61158a96d5f2ca80edfb354a9a66a6324836c390a84e1966dcee2b907d6be43"  # of SHA256SUMS.txt

LICENCES = {
    "pneumoniamnist": "CC BY 4.0 (Yang et al., Scientific Data 2023; Kermany et al., Cell 2018)",
    "chestmnist": "CC BY 4.0 (Yang et al., Scientific Data 2023; Wang et al., CVPR 2017; NIH)",
    "mitdb": "ODC-By 1.0 (Moody & Mark 2001, doi:10.13026/C2F305; Goldberger et al. 2000)",
    "kermany": "CC BY 4.0 (Kermany, Zhang & Goldbaum, doi:10.17632/rscbjbr9sj; Kermany et al., Cell 2018)",
    "nih1000": "no restrictions of use; acknowledge the NIH Clinical Center (Wang et al., CVPR 2017)",
    "pneumoniamnist_patients": "CC BY 4.0 (Yang et al., Scientific Data 2023; Kermany et al., Cell 2018)",
    "mimic": "PhysioNet Credentialed Health Data License 1.5.0 (Johnson et al., arXiv:1901.07042, 2019)",
    "chexpert": "Stanford research use agreement, no redistribution (Irvin et al., AAAI 2019)",
    "chestxray14": "no restrictions of use; acknowledge the NIH Clinical Center (Wang et al., CVPR 2017)",
    "edaic": "end-user licence of the University of Southern California, no redistribution "
    "(Gratch et al., LREC 2014; Ringeval et al., AVEC 2019)",
}
SIMULATED_LICENCE = "simulated by fedsynth; no patient data, no clinical meaning"


@dataclass(frozen=True)
class OfficialFile:
    """One MedMNIST file as its authors publish it."""

    name: str
    url: str
    md5: str


def official_medmnist(name: str, size: int) -> OfficialFile:
    """The published file of one MedMNIST data set at `size` pixels (28, 64, 128 or 224).

    Raises:
        KeyError: If there is no such file; callers check names and sizes first.
    """
    md5 = _MEDMNIST_MD5[(name, size)]
    file = f"{name}.npz" if size == 28 else f"{name}_{size}.npz"
    return OfficialFile(file, f"{_ZENODO}/{file}?download=1", md5)
