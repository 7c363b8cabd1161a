"""A small corpus in the layout of E-DAIC, and ways to break it."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from fedsynth.composition import CONFIG_DIR
from fedsynth.data.edaic.layout import AUDIO_FEATURES, DETAILED_FILE, SPLIT_FILES

#: Number, split and PHQ_Binary of everyone; PHQ_Score is 14, 4, or as in SCORES.
PEOPLE = {
    "train": {301: 0, 302: 1, 303: 0, 304: 1, 305: 0, 306: 1},
    "val": {310: 0, 311: 1},
    "test": {600: 0, 601: 1, 602: 0},
}
NUMBERS = [number for people in PEOPLE.values() for number in people]
#: The rules disagree about these: marked 0 with 12 points, marked 1 with 8.
SCORES = {305: 12, 601: 8}
SECONDS = 4
LINES = ("how have you been", "I can't sleep", "okay so tell me more", "it is fine, I guess")


def score(number: int, binary: int) -> int:
    return SCORES.get(number, 14 if binary else 4)


def write_corpus(root: Path, *, kinds: Sequence[str] = ("egemaps",)) -> Path:
    """Eleven people of four seconds each; files look old, so that their digests may be remembered."""
    root.mkdir(parents=True, exist_ok=True)
    for split, people in PEOPLE.items():
        write_table(
            root / SPLIT_FILES[split],
            ["Participant_ID", "Gender", "PHQ_Binary", "PHQ_Score", "PCL-C (PTSD)", "PTSD Severity"],
            [[n, "female", binary, score(n, binary), 0, 20] for n, binary in people.items()],
        )
        for number in people:
            write_person(root / f"{number}_P", number, kinds)
    known = {**PEOPLE["train"], **PEOPLE["val"]}
    rows = [[number, score(number, binary)] for number, binary in known.items()]
    write_table(root / DETAILED_FILE, ["Participant_ID", "PHQ_8Total"], rows)
    settle(root)
    return root


def write_person(folder: Path, number: int, kinds: Sequence[str] = ("egemaps",)) -> None:
    (folder / "features").mkdir(parents=True, exist_ok=True)
    rows: list[list[object]] = [[i, i + 0.8, text, 0.9] for i, text in enumerate(LINES)]
    write_table(folder / f"{number}_Transcript.csv", ["Start_Time", "End_Time", "Text", "Confidence"], rows)
    for kind in kinds:
        write_features(folder / "features" / f"{number}_OpenSMILE2.3.0_{kind}.csv", frames(number, kind))


def frames(number: int, kind: str = "egemaps") -> np.ndarray:
    """What the feature file of a person holds, as float32."""
    random = np.random.default_rng([number, len(kind)])
    return random.normal(number / 100, 1, (100 * SECONDS, AUDIO_FEATURES[kind])).round(4).astype(np.float32)


def write_features(path: Path, values: np.ndarray, *, delimiter: str = ";") -> None:
    header = ["name", "frameTime", *(f"f{i}" for i in range(values.shape[1]))]
    lines = [delimiter.join(header)]
    for place, row in enumerate(values):
        lines.append(delimiter.join(["'unknown'", f"{place / 100:.6f}", *(f"{value:.4f}" for value in row)]))
    path.write_text("\n".join(lines) + "\n")


def write_table(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[object]], delimiter: str = ","
) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])


def change(path: Path, edit: Callable[[str], str]) -> None:
    """Rewrite a text file; fails if nothing would change."""
    before = path.read_text()
    after = edit(before)
    assert before != after, f"{path} is as before"
    path.write_text(after)


def settle(root: Path) -> None:
    """Give all files a time of change long ago."""
    for path in root.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))


def transcript(root: Path, number: int) -> Path:
    return root / f"{number}_P" / f"{number}_Transcript.csv"


def features(root: Path, number: int, kind: str = "egemaps") -> Path:
    return root / f"{number}_P" / "features" / f"{number}_OpenSMILE2.3.0_{kind}.csv"


def config(log_dir: Path, root: Path | None, **data: object) -> dict[str, object]:
    """The parts of a run's config that data sources depend on, with one stage; ``data`` keys replaced."""
    files = {
        name: OmegaConf.load(CONFIG_DIR / name) for name in ("data/edaic.yaml", "stage/speech_clients.yaml")
    }
    merged = OmegaConf.create(
        {
            "data": {**files["data/edaic.yaml"], "edaic_root": None if root is None else str(root), **data},
            "paths": {"log_dir": str(log_dir), "data_dir": "data"},
            "stages": {"speech_clients": files["stage/speech_clients.yaml"]},
        }
    )
    values = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def stage_values(config_values: Mapping[str, object]) -> dict[str, object]:
    stages = config_values["stages"]
    assert isinstance(stages, dict)
    return {key: value for key, value in stages["speech_clients"].items() if key != "stage"}
