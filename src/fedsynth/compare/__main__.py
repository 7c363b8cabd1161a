"""``python -m fedsynth.compare``: finished runs beside each other, from the command line.

    python -m fedsynth.compare                                 all runs of the newest run's experiment
    python -m fedsynth.compare experiment=feddp_pald,other     all runs of these experiments
    python -m fedsynth.compare runs=20300101-a,20300101-b      these runs (ids, beginnings of ids, folders)
    python -m fedsynth.compare last=6 [experiment=…]           the newest six

Further keys: out=FILE.html (default: <log_dir>/compare/<experiments>.html), log_dir=… (default: LOG_DIR or logs),
logger=wandb (the same content as a W&B run; WANDB_MODE=offline keeps it here).
Runs that differ in nothing but the seed are averaged. Others never are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedsynth.compare.build import CompareFiles, compare_runs, default_page
from fedsynth.compare.console import print_comparison
from fedsynth.compare.selection import select_runs
from fedsynth.errors import ConfigError
from fedsynth.report.command_line import answer, last_of, log_dir_of, read_words

KEYS = ("runs", "experiment", "last", "out", "log_dir", "logger")
LOGGERS = ("none", "wandb")


@dataclass(frozen=True)
class CompareRequest:
    """The parsed command line."""

    log_dir: Path
    runs: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    last: int | None = None
    out: Path | None = None
    logger: str = "none"


def parse_arguments(arguments: Sequence[str]) -> CompareRequest:
    """``key=value`` words to a request.

    Raises:
        ConfigError: A word without ``=``, an unknown or repeated key, or a value that cannot be.
    """
    values = read_words(arguments, KEYS)
    logger = values.get("logger", "none")
    if logger not in LOGGERS:
        raise ConfigError(f"logger must be one of {', '.join(LOGGERS)}, got {logger!r}.")
    return CompareRequest(
        log_dir=log_dir_of(values),
        runs=_names(values.get("runs", "")),
        experiments=_names(values.get("experiment", "")),
        last=last_of(values),
        out=Path(values["out"]) if "out" in values else None,
        logger=logger,
    )


def compare(arguments: Sequence[str], console: Console) -> CompareFiles:
    """Parse, choose, write the page, print the table, log."""
    request = parse_arguments(arguments)
    selection = select_runs(
        request.log_dir, runs=request.runs, experiments=request.experiments, last=request.last
    )
    page = request.out or default_page(request.log_dir, selection.runs)
    files = compare_runs(selection.runs, page, remarks=selection.remarks)
    print_comparison(files.grouping, files.results, list(files.remarks), console)
    for path in (files.picture, files.page):
        if path is not None:
            console.print(str(path), markup=False, soft_wrap=True)
    if request.logger == "wandb":
        from fedsynth.compare.tracking import log_comparison

        id = log_comparison(files, {"wandb": {}}, files.page.parent)
        console.print(f"W&B run {id}", markup=False)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 with one readable message."""
    return answer(arguments, compare, description=__doc__ or "", width=140)


def _names(text: str) -> tuple[str, ...]:
    """Names between commas or spaces; a folder may have spaces in its name."""
    parts = [part.strip() for part in text.split(",")]
    words = [word for part in parts for word in ([part] if os.path.isdir(part) else part.split())]
    return tuple(dict.fromkeys(word for word in words if word))


if __name__ == "__main__":
    sys.exit(main())
