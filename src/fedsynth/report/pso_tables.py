"""Cells of the tables about image systems: AUROC in percent as the paper prints it, settings as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fedsynth.report.records import ReportRecord
from fedsynth.report.runs import StageResult
from fedsynth.report.section import OUTSIDE, Material
from fedsynth.report.tables import DASH, MINUS


def percent(value: float | None, std: float | None = None, *, sign: bool = False) -> str:
    """``84.99 ± 0.31`` of 0.8499 and 0.0031; — for none."""
    if value is None or not math.isfinite(value):
        return DASH
    text = _minus(f"{100 * value:{'+' if sign else ''}.2f}")
    return text if std is None else f"{text} ± {100 * std:.2f}"


def percent_bounds(record: ReportRecord | None, *, sign: bool = False) -> str:
    """``[83.9, 85.2]`` of a record; — without an interval."""
    if record is None or record.ci_low is None or record.ci_high is None:
        return DASH
    plus = "+" if sign else ""
    return _minus(f"[{100 * record.ci_low:{plus}.2f}, {100 * record.ci_high:{plus}.2f}]")


def digits(value: float | None, places: int = 3) -> str:
    """``0.633``; — for none, ∞ for infinite."""
    if value is None or math.isnan(value):
        return DASH
    return _minus("∞" if value == math.inf else f"{value:.{places}f}")


def spread(record: ReportRecord | None, places: int = 3) -> str:
    """``**0.633 ± 0.010**``; — for none."""
    if record is None or record.mean is None:
        return DASH
    return f"**{digits(record.mean, places)}{f' ± {digits(record.std, places)}' if record.std is not None else ''}**"


def outside(record: ReportRecord | None) -> str:
    """The mark of a published value that holds for the runs and lies outside our interval."""
    return f" {OUTSIDE}" if record is not None and record.paper_is_outside else ""


def count(record: ReportRecord | None) -> str:
    """``1,234``, a mean over runs with one decimal; — for none."""
    if record is None or record.mean is None:
        return DASH
    return f"{record.mean:,.0f}" if float(record.mean).is_integer() else f"{record.mean:,.1f}"


def share(value: float | None) -> str:
    """``31.0 %`` of 0.31; — for none."""
    return DASH if value is None else f"{value:.1%}".replace("%", "\N{NO-BREAK SPACE}%")


def kept(rows: Iterable[list[str]], header: list[str]) -> tuple[list[str], list[list[str]]]:
    """Header and rows without the columns that hold nothing but dashes."""
    lines = list(rows)
    full = [index for index in range(len(header)) if any(line[index] not in ("", DASH) for line in lines)]
    return [header[index] for index in full], [[line[index] for index in full] for line in lines]


def first_stage(material: Material, name: str) -> StageResult | None:
    """The stage of the first run, if its artifact is there."""
    stage = material.runs[0].stages.get(name)
    return stage if stage is not None and stage.manifest is not None else None


def every_note(material: Material, name: str, note: str) -> list[Any]:
    """What a stage noted under this name in each run that has it, without those that noted nothing or false."""
    stages = [run.stages.get(name) for run in material.runs]
    found = [stage.notes.get(note) for stage in stages if stage is not None and stage.manifest is not None]
    return [value for value in found if value]


def _minus(text: str) -> str:
    return text.replace("-", MINUS)
