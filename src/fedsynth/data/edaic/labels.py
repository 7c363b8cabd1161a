"""Who is in which split, and who counts as depressed. Torch-free."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsynth.data.edaic.layout import SPLIT_FILES, CorpusLayout
from fedsynth.data.edaic.problems import Problems

LabelRule = Literal["phq_binary", "phq8ge10"]
LABEL_RULES = ("phq_binary", "phq8ge10")
PHQ8_CUT = 10  # total score from which the PHQ-8 counts as positive
PHQ8_MAXIMUM = 24  # eight items of 0 to 3

_SPLIT_COLUMNS = ("Participant_ID", "PHQ_Binary", "PHQ_Score")
_DETAILED_COLUMNS = ("Participant_ID", "PHQ_8Total")


@dataclass(frozen=True)
class Participant:
    """One person of the corpus."""

    number: int
    split: str
    """"train", "val" or "test"."""
    phq_binary: int
    """0 or 1, as printed in the split file."""
    phq_score: int
    """PHQ total, 0 to 24: of ``Detailed_PHQ8_Labels.csv`` where the person is listed, else of the split file."""

    def label(self, rule: LabelRule) -> int:
        """1 for depressed.

        The two rules disagree in E-DAIC: more people have a total of 10 and above than are marked in PHQ_Binary,
        and the paper's 66 of 275 are the marked ones.
        """
        # fidelity: phq-label
        return self.phq_binary if rule == "phq_binary" else int(self.phq_score >= PHQ8_CUT)


@dataclass(frozen=True)
class Listing:
    """Who the split files name."""

    participants: dict[int, Participant]
    """Everyone without a fault who is not excluded, by number, ascending."""
    named: frozenset[int]
    """Everyone, the excluded and those with a faulty row too."""
    complete: bool
    """Whether all split files could be read, so that whoever is not named is in no split."""


def read_participants(
    layout: CorpusLayout,
    problems: Problems,
    *,
    rule: LabelRule = "phq_binary",
    exclude: Collection[int] = (),
) -> Listing:
    """Everyone in the split files; what is wrong goes into `problems`.

    The detailed labels are needed by the rule "phq8ge10" only, and are read if they are there. The rows of excluded
    people may hold anything.
    """
    detailed = _detailed_scores(layout, problems, exclude, needed=rule == "phq8ge10")
    found: dict[int, Participant] = {}
    split_of: dict[int, str] = {}
    complete = True
    for split in SPLIT_FILES:
        path = layout.split_file(split)
        rows = _rows(path, _SPLIT_COLUMNS, problems, exclude)
        complete = complete and bool(rows)
        for number, row in rows.items():
            if number in split_of and number not in exclude:
                both = f"{SPLIT_FILES[split_of[number]]} and {path.name}"
                problems.add("participant in two splits", number, both)
                continue
            split_of[number] = split
            if number in exclude:
                continue
            binary, score = _labels(row, f"{number} in {path.name}", problems)
            if binary is not None and score is not None:
                found[number] = Participant(number, split, binary, detailed.get(number, score))
    return Listing(dict(sorted(found.items())), frozenset(split_of), complete)


def label_conflicts(participants: Mapping[int, Participant]) -> list[int]:
    """The people whom the two label rules judge differently."""
    return [p.number for p in participants.values() if p.label("phq_binary") != p.label("phq8ge10")]


def _labels(row: dict[str, str], where: str, problems: Problems) -> tuple[int | None, int | None]:
    binary, score = _whole(row["PHQ_Binary"], 1), _whole(row["PHQ_Score"], PHQ8_MAXIMUM)
    if binary is None:
        problems.add("PHQ_Binary is not 0 or 1", where, repr(row["PHQ_Binary"]))
    if score is None:
        problems.add("PHQ_Score is not a whole number from 0 to 24", where, repr(row["PHQ_Score"]))
    return binary, score


def _detailed_scores(
    layout: CorpusLayout, problems: Problems, exclude: Collection[int], *, needed: bool
) -> dict[int, int]:
    path = layout.detailed_file
    if not needed and not path.is_file():
        return {}
    scores = {}
    for number, row in _rows(path, _DETAILED_COLUMNS, problems, exclude).items():
        if number in exclude:
            continue
        score = _whole(row["PHQ_8Total"], PHQ8_MAXIMUM)
        if score is None:
            value = repr(row["PHQ_8Total"])
            problems.add("PHQ_8Total is not a whole number from 0 to 24", f"{number} in {path.name}", value)
        else:
            scores[number] = score
    return scores


def _rows(
    path: Path, columns: tuple[str, ...], problems: Problems, exclude: Collection[int]
) -> dict[int, dict[str, str]]:
    """Rows of a table by participant; none if the table cannot be used."""
    if not path.is_file():
        problems.add("missing table", path)
        return {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problems.add("unreadable table", path, str(error))
        return {}
    missing = [name for name in columns if name not in header]
    if missing and len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        problems.add("wrong delimiter, a comma is needed", path, f"header {header[0][:60]!r}")
        return {}
    if missing:
        problems.add("missing columns", path, f"{', '.join(missing)}; it has {', '.join(header) or 'none'}")
        return {}
    if not rows:
        problems.add("empty table", path)
    return _by_participant(path, rows, problems, exclude)


def _by_participant(
    path: Path, rows: list[dict[str, str]], problems: Problems, exclude: Collection[int]
) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for line, row in enumerate(rows, start=2):
        number = _whole(row["Participant_ID"], math.inf)
        if number is None:
            problems.add(
                "Participant_ID is not a number", f"{path.name} line {line}", repr(row["Participant_ID"])
            )
        elif number in found and number not in exclude:
            problems.add("duplicated row", f"{number} in {path.name}", f"line {line}")
        else:
            found[number] = row
    return found


def _whole(text: str | None, largest: float) -> int | None:
    """The whole number from 0 to `largest` that a cell holds, also written as 1.0; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value.is_integer() and 0 <= value <= largest else None
