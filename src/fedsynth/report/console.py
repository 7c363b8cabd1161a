"""The headline table for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from fedsynth.report import glossary
from fedsynth.report.content import ReportContent
from fedsynth.report.tables import interval, mean_and_sd, number

#: Narrower terminals get the table without the interval, which the written report has.
MIN_WIDTH_WITH_INTERVAL = 110


def headline_table(content: ReportContent, *, with_interval: bool = True) -> Table:
    """Paper | ours | 95 % CI | seeds | Δ (ours minus paper) as a rich table; marked when simulated.

    Args:
        content: Of the report.
        with_interval: False: no intervals and no SDs of the paper, to fit 80 columns.
    """
    seeds = ", ".join(str(run.seed) for run in content.runs)
    title = f"{content.runs[0].experiment}, seed{'s' if len(content.runs) > 1 else ''} {seeds}"
    title = f"[bold red]SIMULATED[/] {title}" if content.simulated else title
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True
    )
    table.add_column("arm", min_width=14)
    table.add_column("metric", min_width=11)
    names = ["paper"] if content.has_paper else []
    names += ["ours ± SD", *(["95 % CI"] if with_interval else []), "seeds"]
    names += ["Δ"] if content.has_paper else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    last: tuple[str, str] | None = None
    for record in content.headline:
        key = (record.stage, record.arm)
        name = glossary.row_title(record.stage, record.arm, content.emulated)
        row = ["" if key == last else name, glossary.metric_title(record.metric)]
        if content.has_paper:
            row.append(mean_and_sd(record.paper, record.paper_std) if with_interval else number(record.paper))
        row += [mean_and_sd(record.mean, record.std)]
        row += [interval(record)] if with_interval else []
        row += [str(record.seeds)]
        row += [number(record.delta, sign=True)] if content.has_paper else []
        table.add_row(*row)
        last = key
    return table


def print_headline(content: ReportContent, console: Console | None = None) -> None:
    """Print the headline table, or say that nothing was measured."""
    console = console or Console()
    if content.headline:
        console.print(headline_table(content, with_interval=console.width >= MIN_WIDTH_WITH_INTERVAL))
    else:
        console.print("No stage that measures anything has been run yet.")
