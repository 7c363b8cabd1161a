"""Which runs a command line means: named ones, the last ones, or the newest of each seed of an experiment."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsynth.errors import ConfigError
from fedsynth.report.compatibility import differences
from fedsynth.report.runs import RUN_FILE, Run, find_runs, load_run, quote_runs


@dataclass(frozen=True)
class Request:
    """Which runs are meant, and what to do with them: the parsed command line."""

    log_dir: Path
    experiment: str | None = None
    runs: tuple[str, ...] = ()
    last: int | None = None
    variance: str | None = None
    output: Path | None = None
    allow_mixed: bool = False


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
