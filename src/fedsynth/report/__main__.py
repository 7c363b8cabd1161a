"""``python -m fedsynth.report``: the report of finished runs, from the command line.

    python -m fedsynth.report                                   the newest run
    python -m fedsynth.report experiment=feddp_pald             its newest run of each seed, combined
    python -m fedsynth.report runs=20300101-a,20300101-b        these runs (ids or folders), combined
    python -m fedsynth.report last=3 [experiment=…]             the newest three runs, combined
    python -m fedsynth.report variance=feddp_pald/variance      variance components over runs of a crossed design

Further keys: log_dir=… (default: LOG_DIR or logs), output=… (default below), allow_mixed=true.
One run is reported in its own folder, several in <log_dir>/reports/<experiment>.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedsynth.errors import ConfigError
from fedsynth.report.build import ReportFiles, build_report
from fedsynth.report.command_line import answer, last_of, log_dir_of, read_words
from fedsynth.report.console import print_headline
from fedsynth.report.runs import Run
from fedsynth.report.selection import Request, choose_runs
from fedsynth.report.variance import variance_report

KEYS = ("experiment", "runs", "last", "variance", "log_dir", "output", "allow_mixed")


def parse_arguments(arguments: Sequence[str]) -> Request:
    """``key=value`` words to a request.

    Raises:
        ConfigError: A word without ``=``, an unknown or repeated key, or a value that cannot be.
    """
    values = read_words(arguments, KEYS)
    if "variance" in values and {"experiment", "runs", "last", "allow_mixed"} & set(values):
        raise ConfigError("variance=… names the experiment whose runs are decomposed: give it alone.")
    mixed = values.get("allow_mixed", "false").lower()
    if mixed not in ("true", "false"):
        raise ConfigError(f"allow_mixed must be true or false, got {mixed!r}.")
    return Request(
        log_dir=log_dir_of(values),
        experiment=values.get("experiment"),
        runs=tuple(word for word in values.get("runs", "").split(",") if word),
        last=last_of(values),
        variance=values.get("variance"),
        output=Path(values["output"]) if "output" in values else None,
        allow_mixed=mixed == "true",
    )


def output_folder(request: Request, runs: Sequence[Run]) -> Path:
    """One run: its own folder. Several: the experiment's own folder of combined reports."""
    if request.output is not None:
        return request.output
    if len(runs) == 1:
        return runs[0].path
    return request.log_dir / "reports" / runs[0].experiment


def report(arguments: Sequence[str], console: Console) -> ReportFiles | None:
    """Parse, choose, build, print the headline table; None for a decomposition of variance."""
    request = parse_arguments(arguments)
    if request.variance is not None:
        paths = variance_report(request.log_dir, request.variance, request.output)
        console.print(paths[0].read_text(encoding="utf-8"), markup=False)
        for path in paths[:3]:
            console.print(str(path), markup=False, soft_wrap=True)
        return None
    runs, remarks = choose_runs(request)
    for remark in remarks:
        console.print(f"note: {remark}", markup=False)
    files = build_report(
        [run.path for run in runs],
        output_folder(request, runs),
        log_dir=request.log_dir,
        allow_mixed=request.allow_mixed,
    )
    print_headline(files.content, console)
    for path in (files.markdown, files.html, files.json):
        console.print(str(path), markup=False, soft_wrap=True)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 with one readable message."""
    return answer(arguments, report, description=__doc__ or "", width=120)


if __name__ == "__main__":
    sys.exit(main())
