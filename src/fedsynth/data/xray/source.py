"""Which X-ray data sets with patients there are, where their files lie, and how a run's files make one source.

Needs neither torch nor numpy. None of these files has a public address: each is made by the user of what is published
(or simulated), so each brings a sentence on how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedsynth.data.source_files import DataSource, make_source

#: The name under which stages ask for whatever X-rays their ``dataset`` names.
XRAY = "xray"


@dataclass(frozen=True)
class XrayDataset:
    """One X-ray data set.

    Attributes:
        source: Its name among the data sources. PneumoniaMNIST has two: alone, and with the table of its patients.
        number: Its patients are numbered from ``number`` times 10⁷.
        files: Below DATA_DIR, the images first.
        labels: Kinds of labels it can be read with.
        has_official_test: Whether the publisher says which images are for testing.
        how_to_make: What the files must hold, and of what they are made.
    """

    source: str
    number: int
    files: tuple[str, ...]
    labels: tuple[str, ...]
    has_official_test: bool
    how_to_make: str


DATASETS: Mapping[str, XrayDataset] = {
    "kermany": XrayDataset(
        source="kermany",
        number=0,
        files=("chest/kermany_pediatric_64.npz",),
        labels=("etiology", "binary", "abnormal"),
        has_official_test=True,
        how_to_make="It is made of the JPEG files of doi:10.17632/rscbjbr9sj (folders train/ and test/): grey, aspect "
        "ratio kept, center crop, resized to h x h (64 x 64 here). Keys: images uint8 [n, h, h]; etiology [n], one of "
        "normal, bacteria, virus; patient_key [n], such as bacteria/person5, where bacteria/person5 and virus/person5 "
        "are different people; split [n], train or test, the folder.",
    ),
    "nih1000": XrayDataset(
        source="nih1000",
        number=1,
        files=("chest/nih_chestxray14_1000_64.npz",),
        labels=("eight", "abnormal"),
        has_official_test=False,
        how_to_make="It is made of ChestX-ray14 (nihcc.app.box.com/v/ChestXray-NIHCC) and its Data_Entry_2017.csv: "
        "grey, resized to h x h (64 x 64 here). Keys: images uint8 [n, h, h]; labels [n, k] of 0 and 1, no 1 for No "
        "Finding; label_names [k] as in the list; patient_id [n], whole numbers (Patient ID).",
    ),
    "pneumoniamnist": XrayDataset(
        source="pneumoniamnist_patients",
        number=2,
        files=("medmnist/pneumoniamnist.npz", "medmnist/pneumoniamnist_patients.csv"),
        labels=("binary", "abnormal"),
        has_official_test=True,
        how_to_make="The .csv has one row an image: split (train, val, test), index (from 0, place in that split of "
        "the .npz), label (0 or 1, as in the .npz), patient_key (such as bacteria/person5; empty where unknown), made "
        "by matching pixels with the files of doi:10.17632/rscbjbr9sj. Another order of the images needs another "
        "table. Or use data=kermany, which has its patients.",
    ),
}
BY_SOURCE = {dataset.source: dataset for dataset in DATASETS.values()}


@dataclass(frozen=True)
class XraySource(DataSource):
    """The X-ray data sets of a run as one source; its digest changes with any of them."""

    datasets: Mapping[str, DataSource] | None = None
    """By the name that the setting ``dataset`` has."""


def combine(datasets: Mapping[str, DataSource]) -> XraySource:
    """One source of the data sets found, at least one, all real or all simulated."""
    first = next(iter(datasets.values()))
    # The name of the data set before that of the file: two sets may hold files of one name.
    files = [
        replace(file, name=f"{name}/{file.name}")
        for name, source in datasets.items()
        for file in source.files
    ]
    whole = make_source(first.name, first.path, files, simulated=first.simulated)
    licences = "; ".join(dict.fromkeys(source.licence for source in datasets.values()))
    return XraySource(
        XRAY, whole.path, whole.simulated, whole.files, licences, whole.digest, datasets=dict(datasets)
    )


def places(root: Path, file: str) -> tuple[Path, Path]:
    """Where a file is looked for, in this order."""
    return root / file, root / Path(file).name
