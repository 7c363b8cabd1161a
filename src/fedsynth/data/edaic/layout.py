"""Where E-DAIC keeps what: names of its folders and files. Torch-free, reads no content."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass
from pathlib import Path

from fedsynth.errors import DataError

#: Split file by our name of the split; the corpus calls validation "dev".
SPLIT_FILES = {"train": "train_split.csv", "val": "dev_split.csv", "test": "test_split.csv"}
DETAILED_FILE = "Detailed_PHQ8_Labels.csv"  # training and validation only
SIMULATED_MARK = "SIMULATED.txt"

#: Low-level descriptors of each openSMILE file, without its columns ``name`` and ``frameTime``.
AUDIO_FEATURES = {"egemaps": 23, "mfcc": 39}
FRAME_SECONDS = 0.01

_FOLDER = re.compile(r"([0-9]+)_P")
_LABEL_FOLDERS = (".", "labels", "Labels")
_DATA_FOLDERS = (".", "data", "Data")


@dataclass(frozen=True)
class Utterance:
    """One row of a transcript. E-DAIC names no speaker: participant and interviewer are mixed."""

    start: float
    """Seconds from the beginning of the session."""
    end: float
    text: str


@dataclass(frozen=True)
class CorpusLayout:
    """A corpus on disk: where its tables and its participants are."""

    root: Path
    labels: Path
    """Folder of the split files."""
    data: Path
    """Folder of the folders ``XXX_P``."""

    @property
    def simulated(self) -> bool:
        """Whether fedsynth wrote it, as its marker says."""
        return os.path.isfile(self.root / SIMULATED_MARK)

    def split_file(self, split: str) -> Path:
        return self.labels / SPLIT_FILES[split]

    @property
    def detailed_file(self) -> Path:
        return self.labels / DETAILED_FILE

    def folder(self, participant: int) -> Path:
        return self.data / f"{participant}_P"

    def transcript(self, participant: int) -> Path:
        return self.folder(participant) / f"{participant}_Transcript.csv"

    def features(self, participant: int, kind: str) -> Path:
        """The openSMILE file; `kind` is a key of `AUDIO_FEATURES`."""
        return self.folder(participant) / "features" / f"{participant}_OpenSMILE2.3.0_{kind}.csv"

    @property
    def places(self) -> tuple[Path, ...]:
        """All folders where tables or participants may lie, whether or not they are there."""
        return tuple(dict.fromkeys(self.root / name for name in (*_LABEL_FOLDERS, *_DATA_FOLDERS)))

    def participants(self) -> list[int]:
        """The numbers of all folders ``XXX_P``, ascending."""
        matches = (_FOLDER.fullmatch(path.name) for path in self.data.iterdir() if os.path.isdir(path))
        return sorted(int(match[1]) for match in matches if match)


def find_layout(root: str | Path) -> CorpusLayout:
    """The places of a corpus: tables in `root` or its ``labels/``, participants in `root` or its ``data/``.

    Raises:
        DataError: If `root` is not a folder, or holds neither tables nor participants.
    """
    # os.path says no where pathlib raises: a name that is too long, a home or folder that cannot be looked into.
    root = Path(os.path.expanduser(root))
    if not os.path.isdir(root):
        raise DataError(f"{root} is not a folder. Set EDAIC_ROOT (data.edaic_root) to {expected_layout()}")
    try:
        labels = [root / name for name in _LABEL_FOLDERS if _any_table(root / name)]
        data = [root / name for name in _DATA_FOLDERS if _any_participant(root / name)]
    except OSError as error:
        raise DataError(
            f"Cannot look into {root}, where EDAIC_ROOT (data.edaic_root) says E-DAIC is: {error}. Check permissions."
        ) from error
    if not labels and not data:
        raise DataError(
            f"{root} holds no E-DAIC corpus: no {SPLIT_FILES['train']} and no folder XXX_P. "
            f"Set EDAIC_ROOT (data.edaic_root) to {expected_layout()}"
        )
    return CorpusLayout(root, labels[0] if labels else root, data[0] if data else root)


def expected_layout() -> str:
    """What a corpus must look like, for messages."""
    tables = ", ".join([*SPLIT_FILES.values(), DETAILED_FILE])
    return (
        f"the folder that holds {tables} (there or in labels/) and the extracted folders XXX_P (there or in "
        "data/), each with XXX_Transcript.csv and features/XXX_OpenSMILE2.3.0_egemaps.csv (or _mfcc.csv). "
        "Archives are not opened: extract every XXX_P.tar.gz first."
    )


def _any_table(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in SPLIT_FILES.values())


def _any_participant(folder: Path) -> bool:
    return os.path.isdir(folder) and any(_FOLDER.fullmatch(path.name) for path in folder.iterdir())
