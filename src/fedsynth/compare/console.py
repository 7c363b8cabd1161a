"""The short table for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedsynth.compare.groups import Grouping
from fedsynth.compare.results import ResultRow, Results
from fedsynth.report.glossary import metric_key
from fedsynth.report.tables import DASH, mean_and_sd, number

#: When there are many rows, only these are printed; the page has all.
SHORT_METRICS = ("auroc", "recall", "coverage", "frechet_distance", "attack_auroc")
MAX_ROWS = 60
_NAMES_WIDTH, _COLUMN_WIDTH = 56, 19


def results_table(grouping: Grouping, results: Results, *, max_groups: int) -> tuple[Table, list[str]]:
    """Metrics × groups as a rich table, and remarks on rows and groups that do not fit."""
    rows, remarks = _rows(results)
    groups = grouping.groups[:max_groups]
    if len(grouping.groups) > max_groups:
        left = ", ".join(group.tag for group in grouping.groups[max_groups:])
        remarks.append(f"Groups {left} do not fit here; they are on the page.")
    has_paper = any(row.paper for row in rows)
    title = "[bold red]SIMULATED[/] comparison" if grouping.is_simulated else "Comparison"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True
    )
    table.add_column("what", min_width=14)
    table.add_column("metric", min_width=9)
    if has_paper:
        table.add_column("paper", justify="right", no_wrap=True)
    for group in groups:
        table.add_column(escape(group.name), justify="right", min_width=15)
    last = ""
    for row in rows:
        cells = ["" if row.metric_title + row.title == last else escape(row.title), escape(row.metric_title)]
        if has_paper:
            cells.append(_paper(row, grouping))
        cells += [mean_and_sd(cell.mean, cell.std) if cell else DASH for cell in row.cells[:max_groups]]
        table.add_row(*cells)
        last = row.metric_title + row.title
    return table, remarks


def print_comparison(grouping: Grouping, results: Results, remarks: list[str], console: Console) -> None:
    """Groups with their marks, the table, remarks."""
    for group in grouping.groups:
        seeds = ", ".join(str(run.seed) for run in group.runs)
        plural = "s" if len(group.runs) > 1 else ""
        facts = f"{len(group.runs)} run{plural}, seed{plural} {seeds}"
        console.print(f"{group.name} ({facts})", markup=False, soft_wrap=True)
        for mark in group.marks:
            console.print(f"   ! {mark}", markup=False, style="yellow", soft_wrap=True)
    if results.rows:
        fitting = max(1, (console.width - _NAMES_WIDTH) // _COLUMN_WIDTH)
        table, more = results_table(grouping, results, max_groups=fitting)
        console.print(table)
        remarks = [*remarks, *more]
    else:
        console.print("No stage that measures anything has been run yet.")
    for remark in remarks:
        console.print(f"note: {remark}", markup=False, soft_wrap=True)


def _paper(row: ResultRow, grouping: Grouping) -> str:
    if row.paper is None:
        return "by group" if row.has_several_papers else DASH
    scope = row.paper_scope([group.tag for group in grouping.groups])
    return number(row.paper.paper) + (f" ({scope})" if scope else "")


def _rows(results: Results) -> tuple[list[ResultRow], list[str]]:
    rows = results.headline
    if len(rows) <= MAX_ROWS:
        return rows, []
    short = [row for row in rows if metric_key(row.metric) in SHORT_METRICS][:MAX_ROWS]
    return short, [f"{len(short)} of {len(rows)} headline rows are shown; the page has all."]
