"""Federated systems of a run, and the table that sets the paper's printed numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsynth.report.paper import PaperValue, read_paper_values
from fedsynth.report.privacy_scope import ledger_entries
from fedsynth.report.records import ReportRecord
from fedsynth.report.runs import Run
from fedsynth.report.section import OUTSIDE, Column, Material, Row
from fedsynth.report.system_names import is_private_system, system_rank, system_title
from fedsynth.report.tables import DASH, MINUS, cell, table

KIND = "privacy_performance"
#: Heading of every number that a paper printed: it names the data, which ours need not be.
PAPER_HEADING = "paper (E-DAIC)"


@dataclass(frozen=True)
class System:
    """One system: its arm, the stage that scored it, the stage that trained it, what to call it."""

    arm: str
    stage: str
    encoder: str
    label: str

    @property
    def row(self) -> Row:
        return Row(self.label, self.stage, self.arm)


def systems(material: Material, kind: str = KIND) -> list[System]:
    """Every system that a stage of the kind measured: the paper's in its order, controls, noisy ones, the rest."""
    found = []
    for name in material.names(kind):
        config = _stage_config(material.runs[0], name)
        arms = [record.arm for record in material.records if record.stage == name]
        arm = str(config.get("arm") or (arms[0] if arms else name))
        encoder = str((config.get("inputs") or {}).get("encoder") or arm)
        found.append(System(arm, name, encoder, _label(material.runs[0], arm, encoder)))
    return sorted(found, key=lambda system: system_rank(system.arm))


def _label(run: Run, arm: str, encoder: str) -> str:
    """The title of the system, with ε as its ledger states it where its prototypes are noisy."""
    title = system_title(arm) or arm
    if not is_private_system(arm):
        return title
    found = [entry["epsilon"] for entry in ledger_entries(run) if entry["stage"] == encoder]
    private = [epsilon for epsilon in found if math.isfinite(epsilon)]
    if not private or "ε" in title:
        return title if private or not found else f"{title}, ε = ∞"
    return f"{title}, ε = {math.fsum(private):g}"


def _stage_config(run: Run, name: str) -> dict[str, Any]:
    return (run.config.get("stages") or {}).get(name) or {}


def printed_values(material: Material, kind: str = KIND) -> dict[tuple[str, str], PaperValue]:
    """What the paper printed about federated systems, by (arm, metric), whatever the settings of the runs.

    Reference values for the eye, not for a comparison: those that hold for the runs are ``Material.published``.
    """
    stages = material.runs[0].config.get("stages") or {}
    return {
        (value.arm, value.metric): value
        for value in read_paper_values(material.runs[0].config)
        if value.stage.startswith("score_") or (stages.get(value.stage) or {}).get("stage") == kind
    }


def paper_table(
    material: Material,
    found: Sequence[System],
    metrics: Sequence[Column],
    printed: Mapping[tuple[str, str], PaperValue],
) -> str:
    """Systems down; across our metrics (mean ± SD, below it the 95 % interval), then what the paper printed of them.

    Args:
        material: Holds the numbers.
        found: Systems; one without any number of ours is left out.
        metrics: Columns; one without any number of ours is left out.
        printed: From ``printed_values``. ● marks a value that holds for these runs and lies outside our interval.

    Returns:
        A Markdown table, or an empty text when there is nothing to show.
    """
    kept = [one for one in found if any(_record(material, one, column) for column in metrics)]
    shown = [column for column in metrics if any(_record(material, one, column) for one in kept)]
    if not kept:
        return ""
    papers = [column for column in shown if any((one.arm, column.metric) in printed for one in kept)]
    header = ["system", *(column.title for column in shown)]
    header += [f"{PAPER_HEADING}: {column.title}" for column in papers]
    lines: list[list[str]] = []
    for one in kept:
        records = [_record(material, one, column) for column in shown]
        cells = [_ours(record, column) for record, column in zip(records, shown, strict=True)]
        lines.append(
            [cell(one.label), *cells, *(_printed(material, one, column, printed) for column in papers)]
        )
        if any(record is not None and record.ci_low is not None for record in records):
            lines.append(["95 % CI", *map(bounds, records), *([""] * len(papers))])
    return table(header, lines, right=range(1, len(header)))


def _record(material: Material, system: System, column: Column) -> ReportRecord | None:
    record = material.get(system.stage, system.arm, column.metric)
    return record if record is not None and record.mean is not None else None


def _ours(record: ReportRecord | None, column: Column) -> str:
    if record is None or record.mean is None:
        return DASH
    return f"**{record.mean:g}**" if column.is_exact else f"**{three_digits(record.mean, record.std)}**"


def three_digits(mean: float | None, std: float | None = None, *, sign: bool = False) -> str:
    """``0.812 ± 0.020``: of some fifty participants, a fourth digit says nothing."""
    if mean is None or not math.isfinite(mean):
        return DASH
    text = f"{mean:{'+' if sign else ''}.3f}".replace("-", MINUS)
    return text if std is None else f"{text} ± {std:.3f}"


def bounds(record: ReportRecord | None) -> str:
    """``[0.701, 0.893]``; — without an interval."""
    if record is None or record.ci_low is None or record.ci_high is None:
        return DASH
    return f"[{three_digits(record.ci_low)}, {three_digits(record.ci_high)}]"


def _printed(
    material: Material, system: System, column: Column, printed: Mapping[tuple[str, str], PaperValue]
) -> str:
    value = printed.get((system.arm, column.metric))
    if value is None:
        return DASH
    record = _record(material, system, column)
    is_outside = record is not None and bool(record.paper_is_outside)
    return value.text + (f" {OUTSIDE}" if is_outside else "")
