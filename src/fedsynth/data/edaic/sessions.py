"""Read the two files of a participant, the acoustic descriptors and the transcript, and check what they promise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32
from torch import Tensor

from fedsynth.data.edaic.layout import AUDIO_FEATURES, FRAME_SECONDS, CorpusLayout, Utterance
from fedsynth.data.edaic.problems import Fault, Problems
from fedsynth.data.edaic.tables import read_table, why_unreadable
from fedsynth.errors import ConfigError

TRANSCRIPT_COLUMNS = ("Start_Time", "End_Time", "Text")
#: How far, in seconds, frame times may drift from 10 ms steps.
TIME_TOLERANCE = 1.0
#: Share of utterances that may begin behind the audio and are left out; more, and the two files do not belong together.
LATE_SHARE = 0.2


@dataclass(frozen=True)
class Session:
    """One interview."""

    frames: Float32[Tensor, "frames descriptor"]
    """One row per 10 ms, as openSMILE wrote them."""
    utterances: tuple[Utterance, ...]
    """In order of time; at least one."""
    left_out_rows: int = 0
    """Rows of the transcript without words, or that begin behind the last frame."""


def read_opensmile(path: Path, kind: str) -> Float32[Tensor, "frames descriptor"]:
    """The descriptors of one openSMILE 2.3.0 file: ``name;frameTime;…``, one row per 10 ms.

    Args:
        path: The file, separated by semicolons.
        kind: "egemaps" (23 low-level descriptors) or "mfcc" (39).

    Raises:
        ConfigError: For an unknown kind.
        DataError: If the file is missing or cannot be read, has another delimiter, another number of columns,
            no row, a value that is no number or not finite, or frames that are not 10 ms apart.
    """
    if kind not in AUDIO_FEATURES:
        raise ConfigError(f"audio_features must be one of {', '.join(AUDIO_FEATURES)}, got {kind!r}.")
    names = _opensmile_header(path, 2 + AUDIO_FEATURES[kind])
    types: dict[str, type] = dict.fromkeys(names[2:], np.float32) | {"frameTime": np.float64}
    try:
        # float32 while parsing: an hour of float64 columns would be twice the memory for nothing.
        # A number too large for it becomes infinite, which is found below; numpy need not say so.
        with np.errstate(over="ignore"):
            table = pd.read_csv(
                path, sep=";", names=names, header=0, dtype=types, engine="c", low_memory=False
            )
    except pd.errors.ParserError as error:
        raise Fault(path, "malformed rows", str(error).strip()) from error
    except UnicodeDecodeError as error:
        raise Fault(path, "unreadable file", why_unreadable(error)) from error
    except ValueError as error:
        raise Fault(path, "value that is no number", str(error)) from error
    # Too many fields in every row: pandas takes the first ones for an index.
    if not isinstance(table.index, pd.RangeIndex):
        raise Fault(path, "malformed rows", f"more fields than the {len(names)} of the header")
    if table.empty:
        raise Fault(path, "feature file without frames", "header only")
    time, values = table["frameTime"].to_numpy(), table.iloc[:, 2:].to_numpy(np.float32)
    _check_frames(path, time, values, names[2:])
    return torch.from_numpy(values)


def read_transcript(path: Path) -> tuple[list[Utterance], int]:
    """The utterances of one transcript, ``Start_Time,End_Time,Text,Confidence`` with times in seconds.

    Returns:
        The rows with words, in order of time, at least one; and the number of rows without, which are left out.

    Raises:
        DataError: If the file is missing or cannot be read, has another delimiter, lacks a column, holds no
            words, the same row twice, a time that is no number, or an end before its start.
    """
    utterances, blank, seen = [], 0, set()
    for line, row in read_table(path, TRANSCRIPT_COLUMNS, what="transcript"):
        try:
            start, end = float(row["Start_Time"]), float(row["End_Time"])
        except ValueError as error:
            raise Fault(path, "value that is no number", f"line {line}: {error}") from error
        if not (math.isfinite(start) and math.isfinite(end)):
            raise Fault(path, "value that is no number", f"line {line}: times {start} and {end}")
        if not 0 <= start <= end:
            raise Fault(path, "impossible times of an utterance", f"line {line}: from {start:g} to {end:g} s")
        text = row["Text"].strip()
        if (start, end, text) in seen:
            raise Fault(path, "duplicated row", f"line {line}: {start:g} to {end:g} s")
        seen.add((start, end, text))
        blank += not text
        if text:
            utterances.append(Utterance(start, end, text))
    if not utterances:
        raise Fault(path, "empty transcript", f"{blank} rows, none with words")
    return sorted(utterances, key=lambda utterance: (utterance.start, utterance.end)), blank


def read_session(
    layout: CorpusLayout, participant: int, audio_features: str, problems: Problems
) -> Session | None:
    """Both files of a participant; None if one of them has a fault, which is added to `problems`."""
    frames, transcript = None, None
    try:
        frames = read_opensmile(layout.features(participant, audio_features), audio_features)
    except Fault as fault:
        problems.add(fault.kind, participant, f"{audio_features}: {fault.detail}")
    try:
        transcript = read_transcript(layout.transcript(participant))
    except Fault as fault:
        problems.add(fault.kind, participant, f"transcript: {fault.detail}")
    if frames is None or transcript is None:
        return None
    utterances, left_out = transcript
    # fidelity: late-utterances
    kept = tuple(each for each in utterances if round(each.start / FRAME_SECONDS) < len(frames))
    late = len(utterances) - len(kept)
    if late > LATE_SHARE * len(utterances):
        detail = f"{late} of {len(utterances)} utterances begin behind the audio of {len(frames) * FRAME_SECONDS:g} s"
        problems.add("transcript of another audio", participant, detail)
        return None
    return Session(frames, kept, left_out + late)


def check_same_columns(
    layout: CorpusLayout, participants: Collection[int], audio_features: str, problems: Problems
) -> None:
    """Add a fault for everyone whose descriptors are named or ordered otherwise than those of most others.

    Reads first lines only. Headers that are wrong on their own are left to `read_opensmile`.
    """
    headers = {}
    for number in participants:
        try:
            path = layout.features(number, audio_features)
            headers[number] = tuple(_opensmile_header(path, 2 + AUDIO_FEATURES[audio_features]))
        except Fault:
            continue
    usual = Counter(headers.values()).most_common(1)[0][0] if headers else ()
    for number, names in headers.items():
        if names != usual:
            place, name = next((i, name) for i, name in enumerate(names) if name != usual[i])
            detail = f"{audio_features}: column {place + 1} is {name!r}, of most others {usual[place]!r}"
            problems.add("columns in another order", number, detail)


def _opensmile_header(path: Path, columns: int) -> list[str]:
    header = _first_line(path)
    if not header:
        raise Fault(path, "feature file without frames", "no header")
    if ";" not in header:
        raise Fault(path, "wrong delimiter, a semicolon is needed", f"header {header[:40]!r}")
    names = header.split(";")
    if len(names) != columns or names[1] != "frameTime" or len(set(names)) != columns:
        wanted = f"name;frameTime and {columns - 2} descriptors"
        raise Fault(path, "wrong columns", f"{len(names)} columns, {';'.join(names[:2])};…; wanted {wanted}")
    return names


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.readline().strip()
    except FileNotFoundError as error:
        raise Fault(path, "missing file", path.name) from error
    except (OSError, UnicodeDecodeError) as error:
        raise Fault(path, "unreadable file", why_unreadable(error)) from error


def _check_frames(path: Path, time: np.ndarray, values: np.ndarray, names: list[str]) -> None:
    bad = ~np.isfinite(values)
    bad_rows = bad.any(axis=1) | ~np.isfinite(time)
    if bad_rows.any():
        columns = [name for name, is_bad in zip(names, bad.any(axis=0), strict=True) if is_bad]
        shown = ", ".join(columns[:3] or ["frameTime"]) + (" and more" if len(columns) > 3 else "")
        first = int(bad_rows.argmax())
        detail = f"{bad_rows.sum()} of {len(time)} frames, the first in row {first + 2}, of {shown}"
        raise Fault(path, "NaN or infinite frames", detail)
    steps = np.diff(time)
    if (steps <= 0).any():
        row = int((steps <= 0).argmax()) + 3
        raise Fault(path, "duplicated row", f"row {row}: frame time {time[row - 2]:g} s again or backwards")
    drift = np.abs(time - FRAME_SECONDS * np.arange(len(time)))
    if drift.max() > TIME_TOLERANCE:
        row = int((drift > TIME_TOLERANCE).argmax())
        detail = f"row {row + 2} is at {time[row]:g} s, not {row * FRAME_SECONDS:g} s"
        raise Fault(path, "frames are not 10 ms apart", detail)
