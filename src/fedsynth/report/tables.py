"""Numbers and tables as Markdown text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fedsynth.report.records import ReportRecord

DASH = "—"
MINUS = "\N{MINUS SIGN}"


def number(value: float | None, *, sign: bool = False) -> str:
    """Four decimals, as the papers print; tiny and huge values in a readable form; — for none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    plus = "+" if sign else ""
    value = 0.0 if abs(value) < 1e-12 else value  # rounding, not a difference
    if value != 0 and abs(value) < 5e-4:
        text = f"{value:{plus}.1e}"
    elif abs(value) >= 1000:
        text = f"{value:{plus},.1f}"
    else:
        text = f"{value:{plus}.4f}"
    return text.replace("-", MINUS, 1) if text.startswith("-") else text


def mean_and_sd(mean: float | None, std: float | None) -> str:
    return number(mean) if std is None or mean is None else f"{number(mean)} ± {number(std)}"


def interval(record: ReportRecord) -> str:
    if record.ci_low is None or record.ci_high is None:
        return DASH
    return f"[{number(record.ci_low)}, {number(record.ci_high)}]"


def cell(value: Any) -> str:
    """Any value as the text of one cell: no line break, no bar that would end the cell."""
    if value is None or value == "":
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else ("∞" if value > 0 else DASH)
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value) or DASH
    if isinstance(value, dict):
        return ", ".join(f"{key}: {cell(item)}" for key, item in value.items()) or DASH
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """A Markdown table; the columns in ``right`` are right-aligned."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append(
        "|" + "|".join(" ---: " if index in right else " --- " for index in range(len(header))) + "|"
    )
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
