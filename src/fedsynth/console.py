"""What a run prints. Rank zero speaks; the others are silent."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedsynth.pipeline.planner import PlannedStage

STYLE = {"cached": "green", "computed": "cyan", "running": "yellow", "missing": "red"}


def console(*, stderr: bool = False) -> Console:
    """The console of this process; quiet on every rank but the first."""
    stream = sys.stderr if stderr else sys.stdout
    # A file or pipe has no width: 80 columns would fold every table.
    width = None if stream.isatty() else 120
    return Console(stderr=stderr, quiet=int(os.environ.get("RANK", "0")) != 0, highlight=False, width=width)


def print_error(message: str) -> None:
    """One message for one error, on standard error."""
    console(stderr=True).print(Panel(Text(message), title="fedsynth", border_style="red", title_align="left"))


def banner(message: str) -> None:
    """Something nobody may overlook, e.g. that the data are simulated."""
    console().print(Panel(message, border_style="bold yellow"))


def announce(planned: PlannedStage, status: str, seconds: float) -> None:
    """One line per stage as it starts, is found, or ends."""
    tail = f"{seconds:8.1f} s" if status == "computed" else ""
    console().print(f"[{STYLE[status]}]{status:>9}[/] {planned.name:<22} {planned.key[:12]} {tail}")


def print_plan(rows: Sequence[tuple[PlannedStage, str]]) -> None:
    """Stages, keys, hits and misses."""
    table = Table(title="Plan (nothing is run)")
    for column in ("stage", "kind", "side", "yields", "inputs", "key", "status"):
        table.add_column(column, overflow="fold")
    for planned, status in rows:
        inputs = ", ".join(f"{role}={supplier}" for role, supplier in planned.inputs.items())
        table.add_row(
            planned.name, planned.stage.kind, planned.side.value, planned.sensitivity.value, inputs,
            planned.key[:12] or "(after download)", f"[{STYLE.get(status, 'white')}]{status}[/]",
        )  # fmt: skip
    console().print(table)
