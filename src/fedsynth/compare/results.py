"""The table of everything that was measured: a row per number, a cell per group."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedsynth.compare.groups import Group
from fedsynth.report import glossary
from fedsynth.report.branches import is_variant
from fedsynth.report.pso_emulation import EMULATED
from fedsynth.report.pso_systems import emulated_arms
from fedsynth.report.records import ReportRecord, collect_records

#: Arms of single clients: they have a figure of their own.
CLIENT_ARM = re.compile(r"^client_(\d+)$")


@dataclass(frozen=True)
class ResultRow:
    """One number: stage, arm, metric; its summary in each group, None where a group does not have it."""

    stage: str
    arm: str
    metric: str
    cells: tuple[ReportRecord | None, ...]
    title: str  # unique among the rows of its metric

    @property
    def is_variant(self) -> bool:
        """Whether the stage repeats another with one thing changed: ``tstr_mixture_eps1``."""
        return is_variant(self.stage)

    @property
    def metric_title(self) -> str:
        return glossary.metric_title(self.metric)

    @property
    def is_headline(self) -> bool:
        """Test metrics of classifiers, main arms of the audits; also of the variants a report keeps apart."""
        is_part = self.stage in glossary.MANY_LABEL_STAGES and self.arm != "mean"
        if is_part or CLIENT_ARM.match(self.arm):
            return False
        split, _, key = self.metric.rpartition("/")
        if split:
            return split == "test" and key in glossary.HEADLINE_TEST_METRICS
        is_reference = self.arm.startswith(glossary.REFERENCE_PREFIXES) or self.arm.endswith(
            glossary.REFERENCE_SUFFIX
        )
        return key in glossary.HEADLINE_AUDIT_METRICS and not is_reference

    @property
    def paper(self) -> ReportRecord | None:
        """A cell that carries the published value, if all groups that have one agree on it."""
        published = [cell for cell in self.cells if cell is not None and cell.paper is not None]
        return published[0] if len({cell.paper for cell in published}) == 1 else None

    def paper_scope(self, tags: Sequence[str]) -> str:
        """The groups the published value holds for, "" when it holds for all that have the number."""
        measured = [(tag, cell) for tag, cell in zip(tags, self.cells, strict=True) if cell is not None]
        holding = [tag for tag, cell in measured if cell.paper is not None]
        return "" if len(holding) == len(measured) else ", ".join(holding)

    @property
    def has_several_papers(self) -> bool:
        return len({cell.paper for cell in self.cells if cell is not None and cell.paper is not None}) > 1


@dataclass(frozen=True)
class Results:
    """All rows in the order of the stages, and the short list, headline metric by headline metric."""

    rows: tuple[ResultRow, ...]

    @property
    def headline(self) -> list[ResultRow]:
        chosen = [row for row in self.rows if row.is_headline]
        if not chosen:
            return list(self.rows)
        # Stable: stages stay in order. The public pretraining, with labels of its own, comes last.
        return sorted(
            chosen, key=lambda row: (row.stage in glossary.MANY_LABEL_STAGES, _metric_rank(row.metric))
        )

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys(row.stage for row in self.rows))

    def of_stage(self, stage: str) -> list[ResultRow]:
        return [row for row in self.rows if row.stage == stage]


def collect_results(groups: Sequence[Group]) -> Results:
    """Summarize every group by itself (mean, SD with ddof = 1, 95 % interval over its runs) and line them up.

    Raises:
        ConfigError: ``config.paper`` of a run is malformed.
    """
    by_group = [
        {(record.stage, record.arm, record.metric): record for record in collect_records(group.runs)}
        for group in groups
    ]
    names = list(dict.fromkeys(name for records in by_group for name in records))
    order = {stage: index for index, stage in enumerate(dict.fromkeys(name[0] for name in names))}
    names.sort(key=lambda name: order[name[0]])  # rows only later groups have join their stage
    titles = _unique_titles(names, groups)
    rows = (
        ResultRow(*name, cells=tuple(records.get(name) for records in by_group), title=titles[name])
        for name in names
    )
    return Results(tuple(rows))


def _unique_titles(
    names: Sequence[tuple[str, str, str]], groups: Sequence[Group]
) -> dict[tuple[str, str, str], str]:
    """The report's titles. Of stages that share one (arms of other budgets have equal names), all but the one with
    the shortest name carry the stage's name."""
    marked = _emulated_in(groups)
    told = {(stage, arm): _title(stage, arm, marked.get(arm, ()), len(groups)) for stage, arm, _ in names}
    stages: dict[tuple[str, str], list[str]] = {}
    for stage, arm, metric in names:
        stages.setdefault((told[stage, arm], metric), []).append(stage)
    titles = {}
    for stage, arm, metric in names:
        title = told[stage, arm]
        is_plain = stage == min(stages[title, metric], key=len)
        titles[stage, arm, metric] = title if is_plain else f"{title} ({stage})"
    return titles


def _emulated_in(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Arm → tags of the groups in which its images were chosen as the released code does it."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for arm in emulated_arms(group.runs):
            found.setdefault(arm, []).append(group.tag)
    return found


def _title(stage: str, arm: str, tags: Sequence[str], num_groups: int) -> str:
    """The report's title; where a set was chosen as in the released code in some groups only, it says in which."""
    if len(tags) == num_groups:
        return glossary.row_title(stage, arm, (arm,))
    title = glossary.row_title(stage, arm)
    return f"{title}; in {', '.join(tags)} {EMULATED}" if tags else title


def _metric_rank(metric: str) -> int:
    listed = (*glossary.HEADLINE_TEST_METRICS, *glossary.HEADLINE_AUDIT_METRICS)
    key = glossary.metric_key(metric)
    return listed.index(key) if key in listed else len(listed)
