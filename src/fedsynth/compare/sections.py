"""The parts of the page that are tables: groups, results, settings, ledger, runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from fedsynth.compare.factors import ABSENT, differing_keys, shown
from fedsynth.compare.groups import Group, Grouping, deleted_artifacts, unfinished
from fedsynth.compare.markup import Cell, Column, escape, link, table
from fedsynth.compare.results import ResultRow, Results
from fedsynth.report import glossary
from fedsynth.report.privacy_scope import ledger_entries, uncovered
from fedsynth.report.records import ReportRecord
from fedsynth.report.runs import Run
from fedsynth.report.tables import DASH, duration, mean_and_sd, number

REPORT = "report.html"


def groups_section(grouping: Grouping) -> str:
    """Cards: what each group is, how many runs stand behind it, what to beware of."""
    cards = []
    for index, group in enumerate(grouping.groups):
        seeds = ", ".join(str(run.seed) for run in group.runs)
        count = len(group.runs)
        facts = f"{_counted(count, 'run')}, seed{'s' if count > 1 else ''} {seeds}"
        warnings = "".join(f'<li class="mark">{escape(mark)}</li>' for mark in group.marks)
        cards.append(
            f'<article class="card" style="--series: var(--c{index % 7})"><h3>{_tag(group, index)}'
            f" {escape(group.label)}</h3><p>{escape(facts)}<br>{_experiment(group)}</p>"
            + (f"<ul>{warnings}</ul>" if warnings else "")
            + "</article>"
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def results_table(name: str, caption: str, rows: Sequence[ResultRow], grouping: Grouping) -> str:
    """Metrics × groups, the paper's value beside ours."""
    has_paper = any(row.paper or row.has_several_papers for row in rows)
    has_difference = len(grouping.groups) == 2
    columns = [Column.text("what"), Column.text("metric")]
    columns += [Column.text("paper", is_number=True)] if has_paper else []
    columns += [
        Column(f"{_tag(group, index)}&nbsp;{escape(_short(group))}", True)
        for index, group in enumerate(grouping.groups)
    ]
    if has_difference:
        first, second = grouping.groups
        columns.append(Column.text(f"{second.tag} − {first.tag}", is_number=True))
    lines = []
    for row in rows:
        line = [Cell.text(row.title, is_header=True), _metric_cell(row)]
        line += [_paper_cell(row, grouping)] if has_paper else []
        line += [_result_cell(cell, shows_paper=row.has_several_papers) for cell in row.cells]
        line += [_difference_cell(row)] if has_difference else []
        lines.append(line)
    return table(name, caption, columns, lines, wide=True)


def full_results(results: Results, grouping: Grouping) -> str:
    """Every metric, one expander per stage."""
    parts = []
    for stage in results.stages:
        rows = results.of_stage(stage)
        title = glossary.stage_title(stage)
        inner = results_table(f"all-{stage}", f"All numbers of stage {stage}", rows, grouping)
        parts.append(
            f"<details><summary>{escape(title)} <span class=quiet>{escape(stage)}, "
            f"{_counted(len(rows), 'number')}</span></summary>{inner}</details>"
        )
    return "".join(parts)


def settings_section(grouping: Grouping) -> str:
    """Only the settings that differ; those that vary in the same way and hold the same values share a row."""
    found = differing_keys([group.settings for group in grouping.groups])
    shared: dict[tuple[str, ...], list[str]] = {}
    for key, values in found.items():
        shared.setdefault(tuple(shown(value) for value in values), []).append(key)
    named = {factor.key: place for place, factor in enumerate(grouping.factors)}
    lines = []
    for values, keys in shared.items():
        keys = sorted(keys, key=lambda key: (named.get(key, len(named)), key.startswith("stages."), key))
        also = f"<br><span class=quiet>also {escape(', '.join(keys[1:]))}</span>" if len(keys) > 1 else ""
        first = Cell(f"<code>{escape(keys[0])}</code>{also}", keys[0], is_header=True)
        lines.append([first, *(Cell.text(value) for value in values)])
    if not lines:
        return "<p>No setting differs" + (
            " but the seed.</p>" if len(grouping.runs) > 1 else ": there is one run.</p>"
        )
    columns = [Column.text("setting"), *(Column(_tag(g, i), False) for i, g in enumerate(grouping.groups))]
    return table("settings", f"Settings that differ; {ABSENT}: not there", columns, lines, wide=True)


def ledger_section(grouping: Grouping) -> str:
    """What ε covers, and what is used or published without protection; equal rows of several groups together."""
    releases: dict[tuple[str, ...], list[Group]] = {}
    epsilons: dict[tuple[str, ...], float] = {}
    open_points: dict[tuple[str, str], list[Group]] = {}
    for group in grouping.groups:
        for run in group.runs:
            for entry in ledger_entries(run):
                fields = ("mechanism", "adjacency", "covered", "not_covered", "composition")
                texts = tuple(_plain(entry.get(field)) for field in fields)
                row = (
                    str(entry["stage"]),
                    texts[0],
                    _plain(entry["epsilon"]),
                    _plain(entry["delta"]),
                    *texts[1:],
                )
                epsilons[row] = entry["epsilon"]
                _note(releases.setdefault(row, []), group)
            for point in uncovered(run):
                _note(open_points.setdefault(point, []), group)
    if not releases and not open_points:
        return "<p><strong>No privacy guarantee.</strong> No stage recorded a release, so ε applies to nothing here.</p>"
    titles = ("groups", "stage", "mechanism", "ε", "δ", "adjacency", "covered", "not covered", "composition")
    columns = [Column.text(title, is_number=title in "εδ") for title in titles]
    lines = []
    order = list(dict.fromkeys(row[0] for row in releases))
    for row, groups in sorted(
        releases.items(), key=lambda item: (order.index(item[0][0]), epsilons[item[0]])
    ):
        epsilon = epsilons[row]
        value = None if math.isnan(epsilon) else epsilon
        cells = [Cell.text(_tags(groups, grouping)), *(Cell.text(text) for text in row)]
        lines.append([*cells[:3], Cell(escape(row[2]), value), *cells[4:]])
    first = table("ledger", "Releases: what each ε covers and what it does not", columns, lines)
    open_columns = [
        Column.text(title) for title in ("groups", "stage", "used or published without protection")
    ]
    open_lines = [
        [Cell.text(_tags(groups, grouping)), Cell.text(stage), Cell.text(what)]
        for (stage, what), groups in open_points.items()
    ]
    second = table("uncovered", "Not covered by any ε", open_columns, open_lines)
    return (
        first + "<details open><summary>Not covered by any ε "
        f"<span class=quiet>{_counted(len(open_lines), 'point')}</span></summary>{second}</details>"
        "<p class=quiet>ε = ∞ marks a release without privacy. A guarantee on one release is none for the whole system,"
        " and a failed attack proves no privacy.</p>"
    )


def runs_section(grouping: Grouping, page: Path) -> str:
    """Every run with its state, report and artifacts, as links relative to the page."""
    titles = ("group", "run", "seed", "state", "created", "took", "commit", "report")
    columns = [Column.text(title, is_number=title in ("seed", "took")) for title in titles]
    lines, details = [], []
    for index, group in enumerate(grouping.groups):
        for run in group.runs:
            seconds = run.info.get("seconds")
            report = _relative(run.path / REPORT, page)
            lines.append(
                [
                    Cell(_tag(group, index), group.tag),
                    Cell(link(run.run_id, _relative(run.path, page)), run.run_id, is_header=True),
                    Cell(str(run.seed), run.seed),
                    Cell(_state(run), "finished" if run.is_finished else "unfinished"),
                    Cell.text(run.info.get("created") or DASH),
                    Cell(escape(duration(seconds)), seconds),
                    Cell.text(run.commit),
                    Cell(link("report", report) if report else DASH, report or None),
                ]
            )
            details.append(_artifacts(run, group, page))
    return table("runs", "Runs, with links to their folders", columns, lines) + "".join(details)


def _artifacts(run: Run, group: Group, page: Path) -> str:
    items = []
    for name, stage in run.stages.items():
        target = "" if stage.manifest is None else _relative(stage.path, page)
        gone = "" if target else " <span class=mark>deleted</span>"
        items.append(f"<li>{link(name, target)} <span class=quiet>{escape(stage.key[:12])}</span>{gone}</li>")
    items += [f"<li>{escape(name)} <span class=mark>not reached</span></li>" for name in unfinished(run)]
    command = escape(run.info.get("command") or "")
    return (
        f"<details><summary>Artifacts of {escape(group.tag)}, {escape(run.label)}</summary>"
        f"<p><code>{command}</code></p><ul class=columns>{''.join(items)}</ul></details>"
    )


def _state(run: Run) -> str:
    if not run.is_finished:
        missing = unfinished(run)
        listed = f"<br><span class=quiet>missing: {escape(', '.join(missing))}</span>" if missing else ""
        return f"<span class=mark>unfinished</span>{listed}"
    return "<span class=mark>artifacts deleted</span>" if deleted_artifacts(run) else "finished"


def _metric_cell(row: ResultRow) -> Cell:
    meaning = glossary.METRIC_MEANINGS.get(glossary.metric_key(row.metric))
    title = f' title="{escape(f"{meaning[0]}; better: {meaning[1]}")}"' if meaning else ""
    return Cell(f"<span{title}>{escape(row.metric_title)}</span>", row.metric_title)


def _paper_cell(row: ResultRow, grouping: Grouping) -> Cell:
    if row.has_several_papers:
        return Cell("<span class=quiet>by group</span>")
    record = row.paper
    if record is None:
        return Cell(DASH)
    place = f' title="{escape(record.place)}"' if record.place else ""
    scope = row.paper_scope([group.tag for group in grouping.groups])
    only = f"<br><span class=ci>for {escape(scope)}</span>" if scope else ""
    return Cell(
        f"<span{place}>{escape(mean_and_sd(record.paper, record.paper_std))}</span>{only}", record.paper
    )


def _result_cell(record: ReportRecord | None, *, shows_paper: bool) -> Cell:
    if record is None:
        return Cell(f"<span class=quiet>{DASH}</span>")
    lines = [f"<b>{escape(number(record.mean))}</b>"]
    if record.std is not None:
        lines[0] += f" <span class=sd>± {escape(number(record.std))}</span>"
    small = []
    if record.ci_low is not None:
        small.append(f"[{number(record.ci_low)}, {number(record.ci_high)}]")
    small.append(_unit(record))
    lines.append(f'<span class=ci title="{escape(record.interval)}">{escape(" · ".join(small))}</span>')
    if shows_paper and record.paper is not None:
        lines.append(f"<span class=ci>paper {escape(mean_and_sd(record.paper, record.paper_std))}</span>")
    return Cell("<br>".join(lines), record.mean)


def _unit(record: ReportRecord) -> str:
    if "classifier seeds" in record.interval:
        return f"1 run, {record.seeds} classifier seeds"
    return f"{record.seeds} run{'s' if record.seeds != 1 else ''}"


def _difference_cell(row: ResultRow) -> Cell:
    first, second = row.cells
    if first is None or second is None or first.mean is None or second.mean is None:
        return Cell(DASH)
    return Cell(escape(number(second.mean - first.mean, sign=True)), second.mean - first.mean)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _experiment(group: Group) -> str:
    """The experiment, unless the label has it."""
    return (
        ""
        if group.label.startswith(group.experiment)
        else f"<span class=quiet>{escape(group.experiment)}</span>"
    )


def _short(group: Group) -> str:
    label = group.label.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return ("SIMULATED " if group.is_simulated else "") + label


def _tag(group: Group, index: int) -> str:
    return f'<span class="tag" style="--series: var(--c{index % 7})">{escape(group.tag)}</span>'


def _tags(groups: Sequence[Group], grouping: Grouping) -> str:
    return "all" if len(groups) == len(grouping.groups) > 1 else ", ".join(group.tag for group in groups)


def _note(groups: list[Group], group: Group) -> None:
    if group not in groups:
        groups.append(group)


def _plain(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, (list, tuple)):
        return "; ".join(str(item) for item in value) or DASH
    return shown(value)


def _relative(target: Path, page: Path) -> str:
    """A link from the page to a file or folder, "" when it is not there."""
    if not target.exists():
        return ""
    relative = os.path.relpath(target.resolve(), page.resolve().parent)
    return quote(Path(relative).as_posix() + ("/" if target.is_dir() else ""))
