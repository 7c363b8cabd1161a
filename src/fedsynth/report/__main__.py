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

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedsynth.errors import ConfigError
from fedsynth.report.build import ReportFiles, build_report
from fedsynth.report.command_line import answer
from fedsynth.report.compatibility import differences
from fedsynth.report.console import print_headline
from fedsynth.report.runs import RUN_FILE, Run, find_runs, load_run, quote_runs
from fedsynth.report.variance import variance_report

KEYS = ("experiment", "runs", "last", "variance", "log_dir", "output", "allow_mixed")


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

    log_dir: Path
    experiment: str | None = None
    runs: tuple[str, ...] = ()
    last: int | None = None
    variance: str | None = None
    output: Path | None = None
    allow_mixed: bool = False


def parse_arguments(arguments: Sequence[str]) -> Request:
    """``key=value`` words to a request.

    Raises:
        ConfigError: A word without ``=``, an unknown or repeated key, or a value that cannot be.
    """
    values: dict[str, str] = {}
    for word in arguments:
        key, separator, value = word.lstrip("-").partition("=")
        if not separator or key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f" Did you mean {close[0]}=…?" if close else ""
            raise ConfigError(f"Cannot read {word!r}: give key=value with one of {', '.join(KEYS)}.{hint}")
        if key in values or not value.strip(", "):
            raise ConfigError(
                f"{key} is {'given twice' if key in values else 'empty'}: give it once, with a value."
            )
        values[key] = value
    if "runs" in values and ("experiment" in values or "last" in values):
        raise ConfigError("runs=… names the runs already: leave out experiment=… and last=….")
    if "variance" in values and {"experiment", "runs", "last", "allow_mixed"} & set(values):
        raise ConfigError("variance=… names the experiment whose runs are decomposed: give it alone.")
    last = values.get("last")
    if last is not None and (not last.isdecimal() or int(last) < 1):
        raise ConfigError(f"last must be a whole number of at least 1, got {last!r}.")
    mixed = values.get("allow_mixed", "false").lower()
    if mixed not in ("true", "false"):
        raise ConfigError(f"allow_mixed must be true or false, got {mixed!r}.")
    return Request(
        log_dir=Path(values.get("log_dir") or os.environ.get("LOG_DIR") or "logs"),
        experiment=values.get("experiment"),
        runs=tuple(word for word in values.get("runs", "").split(",") if word),
        last=int(last) if last else None,
        variance=values.get("variance"),
        output=Path(values["output"]) if "output" in values else None,
        allow_mixed=mixed == "true",
    )


def choose_runs(request: Request) -> tuple[list[Run], list[str]]:
    """The runs a request means, by seed, and remarks on runs that were passed over.

    Raises:
        ConfigError: No such run, or a name fits several.
    """
    if request.runs:
        return sorted(
            (_named_run(name, request.log_dir) for name in request.runs), key=lambda run: run.seed
        ), []
    found = find_runs(request.log_dir, request.experiment)
    if not found:
        raise ConfigError(_nothing_found(request))
    if request.last is not None:
        if len(found) < request.last:
            raise ConfigError(
                f"last={request.last}, but there are only {len(found)} runs: {quote_runs(found)}."
            )
        return sorted(found[: request.last], key=lambda run: run.seed), []
    if request.experiment is None:
        return found[:1], []
    return newest_of_each_seed(found)


def newest_of_each_seed(found: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Of each seed the newest run that has the settings of the newest run of all; finished runs go first.

    Args:
        found: Runs of one experiment, newest first.

    Returns:
        The runs by seed, and a remark for each seed all of whose runs have other settings.
    """
    ordered = sorted(found, key=lambda run: not run.is_finished)  # stable: newest first within each half
    anchor = ordered[0]
    chosen = {anchor.seed: anchor}
    refused: dict[int, str] = {}
    for run in ordered[1:]:
        if run.seed in chosen:
            continue
        found_differences = differences([anchor, run])
        if found_differences:
            refused.setdefault(
                run.seed, f"{run.label} is left out, it has other settings: {found_differences[0]}"
            )
        else:
            chosen[run.seed] = run
    remarks = [text for seed, text in refused.items() if seed not in chosen]
    return [chosen[seed] for seed in sorted(chosen)], remarks


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


def _named_run(name: str, log_dir: Path) -> Run:
    if os.path.isfile(Path(name) / RUN_FILE):  # False, where pathlib fails, for a name no file can have
        return load_run(Path(name), log_dir=log_dir)
    folders = sorted(path.parent for path in (log_dir / "runs").rglob(RUN_FILE))
    exact = [folder for folder in folders if folder.name == name]
    fitting = exact or [folder for folder in folders if folder.name.startswith(name)]
    if len(fitting) == 1:
        return load_run(fitting[0], log_dir=log_dir)
    if fitting:
        listed = ", ".join(str(folder.relative_to(log_dir)) for folder in fitting[:6])
        raise ConfigError(
            f"runs: {name!r} fits {len(fitting)} runs ({listed}). Give the folder or the whole id."
        )
    names = [folder.name for folder in folders]
    close = difflib.get_close_matches(name, names, n=3) or names[-3:]
    shown = f"{name[:80]}…" if len(name) > 80 else name
    raise ConfigError(
        f"runs: no run {shown!r} below {log_dir / 'runs'} ({len(names)} runs there)."
        + (f" Nearest: {', '.join(close)}." if close else " Run an experiment first.")
    )


def _nothing_found(request: Request) -> str:
    everything = find_runs(request.log_dir)
    if not everything:
        return (
            f"No finished or partial run below {request.log_dir / 'runs'}."
            " Run an experiment first, or give log_dir=… of one."
        )
    names = sorted({run.experiment for run in everything})
    close = difflib.get_close_matches(request.experiment or "", names, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"No run of experiment {request.experiment!r}; there are runs of: {', '.join(names)}.{hint}"


if __name__ == "__main__":
    sys.exit(main())
