"""What a section of results is made from, and the table most of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedsynth.report.branches import Branch, branch_of
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.paper import PaperValue, applicable_values
from fedsynth.report.records import ReportRecord
from fedsynth.report.runs import Run
from fedsynth.report.tables import DASH, MINUS, cell, interval, mean_and_sd, number, table

OUTSIDE = "●"
OUTSIDE_NOTE = f"{OUTSIDE}: the paper's value lies outside our 95 % interval"


@dataclass(frozen=True)
class Section:
    """One section of results.

    Attributes:
        title: Heading.
        text: Markdown below it, without figures.
        figures: Drawn for this section.
        shows: Names of figures of the gallery that belong here; those not drawn are passed over.
    """

    title: str
    text: str
    figures: tuple[ReportFigure, ...] = ()
    shows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One system of a table: what to call it and where its numbers are."""

    label: str
    stage: str
    arm: str


@dataclass(frozen=True)
class Column:
    """One metric of a table.

    Attributes:
        title: Heading.
        metric: Name of the metric.
        suffix: Added to the row's arm, for arms that belong together.
        is_exact: A count or a setting: shown as it is, without spread and interval.
    """

    title: str
    metric: str
    suffix: str = ""
    is_exact: bool = False


@dataclass(frozen=True)
class Material:
    """Runs and their numbers, looked up by name."""

    runs: tuple[Run, ...]
    records: tuple[ReportRecord, ...]
    _index: dict[tuple[str, str, str], ReportRecord] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {(record.stage, record.arm, record.metric): record for record in self.records}
        object.__setattr__(self, "_index", index)

    @property
    def simulated(self) -> bool:
        return any(run.is_simulated for run in self.runs)

    @cached_property
    def published(self) -> dict[tuple[str, str, str], PaperValue]:
        """Published values that hold for these runs; none on simulated data."""
        return {} if self.simulated else applicable_values([run.config for run in self.runs])

    def get(self, stage: str, arm: str, metric: str) -> ReportRecord | None:
        return self._index.get((stage, arm, metric))

    def names(self, kind: str) -> list[str]:
        """Stages of a kind that any run has, in the order of the runs."""
        return list(dict.fromkeys(stage.name for run in self.runs for stage in run.of_kind(kind)))

    def branch(self, stage: str) -> Branch | None:
        return branch_of(self.runs[0].config, stage)

    def caption(self, text: str) -> str:
        """A table's caption, marked when the data is simulated."""
        return f"**SIMULATED.** {text}" if self.simulated else f"*{text}*"

    @property
    def first_run(self) -> str:
        """Remark for what only one run can show."""
        return (
            "" if len(self.runs) == 1 else f" Shown: run {self.runs[0].label}, the first of {len(self.runs)}."
        )


def comparison(material: Material, heading: str, rows: Sequence[Row], metrics: Sequence[Column]) -> str:
    """Systems down, metrics across: ours (mean ± SD), below it the 95 % interval, the paper and the difference.

    Args:
        material: Holds the numbers.
        heading: Of the first column.
        rows: Systems; one without any number is left out.
        metrics: Columns; one without any number is left out.

    Returns:
        A Markdown table, or an empty text when there is nothing to show.
    """
    found = {
        row: [material.get(row.stage, row.arm + column.suffix, column.metric) for column in metrics]
        for row in rows
    }
    kept = [row for row in rows if any(found[row])]
    columns = [index for index in range(len(metrics)) if any(found[row][index] for row in kept)]
    lines: list[list[str]] = []
    for row in kept:
        records = [found[row][index] for index in columns]
        counts = [metrics[index].is_exact for index in columns]
        lines.append([cell(row.label), *map(_ours, records, counts)])
        if any(record and record.ci_low is not None for record in records):
            cells = (
                DASH if record is None or is_exact else interval(record)
                for record, is_exact in zip(records, counts, strict=True)
            )
            lines.append(["95 % CI", *cells])
        if any(record and record.paper is not None for record in records):
            lines.append(["*paper*", *map(_paper, records)])
            lines.append([f"*ours {MINUS} paper*", *map(difference, records)])
    if not lines:
        return ""
    header = [heading, *(metrics[index].title for index in columns)]
    return table(header, lines, right=range(1, len(header)))


def _ours(record: ReportRecord | None, is_exact: bool) -> str:
    if is_exact and record and record.mean is not None:
        return f"**{record.mean:g}**"
    return f"**{mean_and_sd(record.mean, record.std)}**" if record else DASH


def _paper(record: ReportRecord | None) -> str:
    """``0.9455 ± 0.0266``, with the paper's own interval where there is one."""
    if record is None or record.paper is None:
        return DASH
    own = (
        f" [{number(record.paper_low)}, {number(record.paper_high)}]" if record.paper_low is not None else ""
    )
    return f"{mean_and_sd(record.paper, record.paper_std)}{own}"


def difference(record: ReportRecord | None) -> str:
    """``+0.0438 ●``: ours minus the paper's, marked where the paper's value lies outside our interval."""
    if record is None or record.delta is None:
        return DASH
    return number(record.delta, sign=True) + (f" {OUTSIDE}" if record.paper_is_outside else "")


def reading_note(material: Material) -> str:
    """How to read the rows of ``comparison``; one sentence less without a paper."""
    unit = (
        f"{len(material.runs)} runs"
        if len(material.runs) > 1
        else "classifier seeds, where there are several"
    )
    text = f"Bold: our mean ± SD over {unit}."
    if material.published:
        text += f" *paper*: published value; {OUTSIDE_NOTE}."
    return text
