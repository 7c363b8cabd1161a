"""Who is in which split, and who counts as depressed. Torch-free."""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsynth.data.edaic.layout import DETAILED_FILE, SPLIT_FILES, CorpusLayout
from fedsynth.data.edaic.lookalikes import hint
from fedsynth.data.edaic.problems import Fault, Problems
from fedsynth.data.edaic.tables import read_table

LabelRule = Literal["phq_binary", "phq8ge10"]
LABEL_RULES = ("phq_binary", "phq8ge10")
PHQ8_CUT = 10  # total score from which the PHQ-8 counts as positive
PHQ8_MAXIMUM = 24  # eight items of 0 to 3

_SPLIT_COLUMNS = ("Participant_ID", "PHQ_Binary", "PHQ_Score")
_DETAILED_COLUMNS = ("Participant_ID", "PHQ_8Total")
_WHOLE = re.compile(r"([0-9]{1,18})(?:\.0*)?")
_LARGEST_NUMBER = 10**9  # participants are int64 in tensors, and three digits in the corpus


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
        rows = _rows(layout, path, _SPLIT_COLUMNS, problems, exclude)
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
                if rule == "phq8ge10" and detailed:
                    _warn_of_score(number, split, score, detailed.get(number), problems)
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


def _warn_of_score(number: int, split: str, score: int, detailed: int | None, problems: Problems) -> None:
    """Say which of two totals decides, where one is missing or they disagree. No test person is in the table."""
    if detailed is None and split != "test":
        problems.warn(f"not in {DETAILED_FILE}, the label is by PHQ_Score", number, str(score))
    elif detailed is not None and (detailed >= PHQ8_CUT) != (score >= PHQ8_CUT):
        totals = f"PHQ_8Total {detailed}, PHQ_Score {score}"
        problems.warn(f"labels of two tables disagree, {DETAILED_FILE} decides", number, totals)


def _detailed_scores(
    layout: CorpusLayout, problems: Problems, exclude: Collection[int], *, needed: bool
) -> dict[int, int]:
    path = layout.detailed_file
    if not needed and not os.path.isfile(path):
        return {}
    scores = {}
    for number, row in _rows(layout, path, _DETAILED_COLUMNS, problems, exclude).items():
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
    layout: CorpusLayout,
    path: Path,
    columns: tuple[str, ...],
    problems: Problems,
    exclude: Collection[int],
) -> dict[int, dict[str, str]]:
    """Rows of a table by participant; none if the table cannot be used."""
    try:
        rows = read_table(path, columns)
    except Fault as fault:
        is_absent = fault.kind == "missing table"
        detail = hint(path, layout.places, layout.root).removeprefix("; ") if is_absent else fault.detail
        problems.add(fault.kind, path, detail)
        return {}
    if not rows:
        problems.add("empty table", path)
    return _by_participant(path, rows, problems, exclude)


def _by_participant(
    path: Path, rows: list[tuple[int, dict[str, str]]], problems: Problems, exclude: Collection[int]
) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for line, row in rows:
        number = _whole(row["Participant_ID"], _LARGEST_NUMBER)
        if number is None:
            problems.add(
                "Participant_ID is not a number", f"{path.name} line {line}", repr(row["Participant_ID"])
            )
        elif number in found and number not in exclude:
            problems.add("duplicated row", f"{number} in {path.name}", f"line {line}")
        else:
            found[number] = row
    return found


def _whole(text: str, largest: int) -> int | None:
    """The whole number from 0 to `largest` that a cell holds, also written as 1.0; None for anything else."""
    match = _WHOLE.fullmatch(text.strip())
    return int(match[1]) if match and int(match[1]) <= largest else None
