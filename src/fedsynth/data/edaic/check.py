"""Is this a whole E-DAIC corpus? Everything that is wrong with it, in one error, before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsynth.data.edaic.labels import LabelRule, Participant, read_participants
from fedsynth.data.edaic.layout import SPLIT_FILES, CorpusLayout, find_layout
from fedsynth.data.edaic.lookalikes import hint
from fedsynth.data.edaic.problems import Problems

REMEDY = (
    "Mend or fetch these files, or leave the participants out: "
    "data.exclude_participants=[NUMBER, …]. The corpus is given by EDAIC_ROOT (data.edaic_root)."
)
SIMULATED_REMEDY = (
    "This corpus is simulated, not yours to mend: if its files were changed, delete the folder, and the next run "
    "writes it anew."
)


@dataclass(frozen=True)
class CorpusReport:
    """A corpus without a fault, as far as it was looked at."""

    layout: CorpusLayout
    participants: dict[int, Participant]
    """All that are to be used, by number, ascending."""
    warnings: tuple[str, ...]
    """What is odd but no fault, one line per kind; participants are named."""


def check_corpus(
    root: str | Path,
    *,
    audio_features: Collection[str],
    rule: LabelRule = "phq_binary",
    exclude: Collection[int] = (),
    contents: bool = True,
) -> CorpusReport:
    """Look at tables, folders and files, and collect every fault before saying so.

    Args:
        root: The corpus; see `fedsynth.data.edaic.layout` for what it must look like.
        audio_features: Kinds of openSMILE files that are needed: "egemaps", "mfcc".
        rule: The label rule; "phq8ge10" needs ``Detailed_PHQ8_Labels.csv``.
        exclude: Participants not to be used; their files are not looked at.
        contents: Also parse transcripts and features, some 12 seconds per gigabyte. Without it, tables and file
            names alone.

    Raises:
        DataError: One for all faults, grouped by kind, with the participants: missing tables, columns, folders
            or files, participants in two splits, values that are no labels, duplicated rows, wrong delimiters;
            and from the contents empty transcripts, values that are no finite numbers, a transcript of another audio.
    """
    problems = Problems()
    layout = find_layout(root)
    participants = check_structure(
        layout, problems, audio_features=audio_features, rule=rule, exclude=exclude
    )
    if contents:
        from fedsynth.data.edaic.sessions import check_same_columns, read_session
        from fedsynth.data.progress import tracked

        readable = [p for p in participants if _complete(layout, p, audio_features)]
        for kind in audio_features:
            check_same_columns(layout, readable, kind, problems)
        for number in tracked(readable, "Checking E-DAIC"):
            for kind in audio_features:
                session = read_session(layout, number, kind, problems)
                if session is not None:
                    warn_of_left_out_rows(problems, number, session.left_out_rows)
    problems.raise_if_any(layout.root, REMEDY)
    return CorpusReport(layout, participants, tuple(problems.warning_lines()))


def check_structure(
    layout: CorpusLayout,
    problems: Problems,
    *,
    audio_features: Collection[str],
    rule: LabelRule,
    exclude: Collection[int],
) -> dict[int, Participant]:
    """The participants to use, by number; faults and warnings go into `problems`. Parses tables only."""
    listing = read_participants(layout, problems, rule=rule, exclude=exclude)
    for number in sorted(set(exclude) - listing.named) if listing.complete else []:
        problems.add("excluded participant is in no split", number)
    used = listing.participants
    for number in layout.participants() if listing.complete else []:
        if number not in listing.named:
            problems.warn("extra participant folder, in no split", number, layout.folder(number).name)
    for number in used:
        _check_files(layout, number, audio_features, problems)
    _check_classes(used, rule, problems, complete=listing.complete)
    return used


def readable_participants(
    layout: CorpusLayout, participants: Mapping[int, Participant], audio_features: str
) -> list[int]:
    """The participants whose two files are there."""
    return [number for number in participants if _complete(layout, number, (audio_features,))]


def warn_of_left_out_rows(problems: Problems, number: int, left_out_rows: int) -> None:
    """Say that rows of a transcript are not used, if there are any."""
    if left_out_rows:
        problems.warn(
            "transcript rows left out (no words, or behind the audio)", number, f"{left_out_rows} rows"
        )


def _complete(layout: CorpusLayout, number: int, audio_features: Collection[str]) -> bool:
    files = [layout.transcript(number), *(layout.features(number, kind) for kind in audio_features)]
    return all(os.path.isfile(path) for path in files)


def _check_files(
    layout: CorpusLayout, number: int, audio_features: Collection[str], problems: Problems
) -> None:
    folder = layout.folder(number)
    if not os.path.isdir(folder):
        problems.add(
            "missing participant folder", number, folder.name + hint(folder, layout.places, layout.root)
        )
        return
    needed = [("missing transcript", layout.transcript(number))]
    needed += [("missing feature file", layout.features(number, kind)) for kind in audio_features]
    for kind, path in needed:
        if not os.path.isfile(path):
            name = path.relative_to(folder).as_posix()
            below = [Path(place) for place, _, _ in os.walk(folder)]
            problems.add(kind, number, name + hint(path, below, layout.root))


def _check_classes(
    used: Mapping[int, Participant], rule: LabelRule, problems: Problems, *, complete: bool
) -> None:
    """Every split that could be read must hold both classes."""
    for split in SPLIT_FILES:
        labels = {person.label(rule) for person in used.values() if person.split == split}
        if len(labels) == 1:
            problems.add("split with one class only", split, f"all {labels.pop()} by {rule}")
        elif not labels and complete:
            problems.add("split without a usable participant", split, SPLIT_FILES[split])
