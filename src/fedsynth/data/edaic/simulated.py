"""Write a SIMULATED corpus in the layout of E-DAIC, which is licensed and not included.

It says nothing about patients, depression or any published number: templates instead of interviews, drawn
descriptors instead of speech. It exists so that everything runs without a licence, on a task of the same shape.
A session lasts 32 to 40 s instead of 16 minutes, which gives three or more segments of 10 s.

How hard it is was set by hand (`simulated_people`: manners and shares; `simulated_audio`: _FLAT). Signs are in the
voice, in the words, or in neither alone but in a flat voice with cheerful words, amid large differences between
speakers; the test split has the agent's room only. Measured on participants, means over seeds: logistic
regression on mean features of segments (five seeds) has a test UAR of 0.75 from audio, 0.68 from text, 0.80 from
both; a BiLSTM with attention on pooled data (three seeds) 0.75, 0.78 and 0.86. With 17 depressed people the test
UAR of one seed moves by 0.05 and more.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock

from fedsynth.data.edaic.layout import DETAILED_FILE, SIMULATED_MARK, SPLIT_FILES, CorpusLayout
from fedsynth.data.edaic.simulated_audio import (
    EGEMAPS_COLUMNS,
    MFCC_COLUMNS,
    simulated_egemaps,
    simulated_mfcc,
)
from fedsynth.data.edaic.simulated_people import PHQ8_ITEMS, Person, simulated_people
from fedsynth.data.edaic.simulated_text import Turn, simulated_turns
from fedsynth.data.progress import tracked
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import derive_seed

SIMULATION_VERSION = 1  # raise it when the same seed gives other data
_MARK = "SIMULATED by fedsynth: no patient data, no clinical meaning. Not the E-DAIC corpus.\n"
_SPLIT_COLUMNS = ("Participant_ID", "Gender", "PHQ_Binary", "PHQ_Score", "PCL-C (PTSD)", "PTSD Severity")
_DETAILED_COLUMNS = ("Participant_ID", *(f"PHQ_8{item}" for item in PHQ8_ITEMS), "PHQ_8Total")
_TRANSCRIPT_COLUMNS = ("Start_Time", "End_Time", "Text", "Confidence")


def write_simulated_corpus(
    directory: str | Path,
    *,
    seed: int,
    scale: float = 1.0,
    mfcc: bool = False,
) -> Path:
    """Write the simulated corpus unless it is there, and return its root.

    Below ``directory/v<version>-seed<seed>/``. The corpus appears under its final name only when it is complete,
    also if two processes write at once. Each person has random streams of their own.

    Args:
        directory: Where to write.
        seed: Of the simulation, ≥ 0.
        scale: Share of the 275 people, in (0, 1]; every split keeps at least 4 depressed and 8 others.
        mfcc: Also write the MFCC files, which double size and time. Without them the setting
            ``audio_features=mfcc`` finds them missing.

    Raises:
        ConfigError: For a negative seed or a scale outside (0, 1].
        DataError: If the directory cannot be written.
    """
    if seed < 0 or not 0 < scale <= 1:
        raise ConfigError(f"Simulation needs seed ≥ 0 and 0 < scale ≤ 1, got {seed} and {scale}.")
    name = "edaic" + ("" if scale == 1 else f"-scale{scale:g}") + ("-mfcc" if mfcc else "")
    root = Path(directory).expanduser() / f"v{SIMULATION_VERSION}-seed{seed}" / name
    if root.exists():  # before locking: the place may be read-only by now
        return root
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{root}.lock"):
            if not root.exists():
                _write(root, seed, scale, mfcc)
    except OSError as error:
        raise DataError(
            f"Cannot write simulated data to {root}: {error}. Check space and permissions."
        ) from error
    return root


def _write(root: Path, seed: int, scale: float, mfcc: bool) -> None:
    """Write into a temporary neighbor, then rename. Under the lock: what lies there is of a process that was killed."""
    for stale in root.parent.glob(f".{root.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{root.name}.partial-", dir=root.parent))
    try:
        people = simulated_people(_stream(seed, "people"), scale)
        layout = CorpusLayout(temporary, temporary, temporary)
        (temporary / SIMULATED_MARK).write_text(_MARK)
        _write_tables(layout, people)
        for person in tracked(people, "simulating E-DAIC"):
            _write_session(layout, person, seed, mfcc)
        temporary.chmod(0o755)  # mkdtemp makes it private
        temporary.replace(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _stream(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, "simulated edaic", *names))


def _write_tables(layout: CorpusLayout, people: list[Person]) -> None:
    for split in SPLIT_FILES:
        rows = [
            (p.number, p.gender, p.phq_binary, p.phq_score, p.ptsd, p.ptsd_severity)
            for p in people
            if p.split == split
        ]
        _write_csv(layout.split_file(split), _SPLIT_COLUMNS, rows)
    detailed = [(p.number, *p.items, p.phq_score) for p in people if p.split != "test"]
    _write_csv(layout.labels / DETAILED_FILE, _DETAILED_COLUMNS, detailed)


def _write_session(layout: CorpusLayout, person: Person, seed: int, mfcc: bool) -> None:
    turns, seconds = simulated_turns(_stream(seed, "text", person.number), person)
    frames = simulated_egemaps(_stream(seed, "audio", person.number), person, turns, seconds)
    layout.features(person.number, "egemaps").parent.mkdir(parents=True)
    _write_csv(layout.transcript(person.number), _TRANSCRIPT_COLUMNS, map(_transcript_row, turns))
    _write_opensmile(layout.features(person.number, "egemaps"), EGEMAPS_COLUMNS, frames)
    if mfcc:
        cepstra = simulated_mfcc(_stream(seed, "mfcc", person.number), frames)
        _write_opensmile(layout.features(person.number, "mfcc"), MFCC_COLUMNS, cepstra)


def _transcript_row(turn: Turn) -> tuple[str, str, str, str]:
    said = turn.utterance
    return f"{said.start:.1f}", f"{said.end:.1f}", said.text, f"{turn.confidence:.4f}"


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _write_opensmile(path: Path, columns: Sequence[str], frames: np.ndarray) -> None:
    """Semicolons and a quoted name, as openSMILE's CSV sink writes; four digits to save space."""
    num, width = frames.shape
    table = np.empty((num, width + 1))
    table[:, 0] = np.arange(num) / 100
    table[:, 1:] = frames
    # One format for the whole file: ten times faster than a call per row or cell.
    row = "'unknown';%.2f" + ";%.4g" * width + "\n"
    header = ";".join(("name", "frameTime", *columns)) + "\n"
    path.write_text(header + (row * num) % tuple(table.ravel().tolist()))
