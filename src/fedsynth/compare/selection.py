"""Which runs a command line means, and a remark on everything that was passed over on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.report.runs import RUN_FILE, Run, load_run
from fedsynth.report.selection import Request, choose_runs

#: The folder Hydra makes in a run's folder before anything is computed.
HYDRA_FOLDER = "config"


@dataclass(frozen=True)
class Selection:
    """Runs to compare, oldest first, and what was left out with the reason."""

    runs: tuple[Run, ...]
    remarks: tuple[str, ...] = ()


def select_runs(
    log_dir: Path, *, runs: Sequence[str] = (), experiments: Sequence[str] = (), last: int | None = None
) -> Selection:
    """Find the runs to compare.

    Args:
        log_dir: Holds ``runs/<experiment>/<run id>/run.json``.
        runs: Ids, unique beginnings of ids, or folders. They must exist and be readable.
        experiments: All runs of these. With neither, all runs of the newest run's experiment.
        last: Only the newest so many of what was found.

    Raises:
        ConfigError: No such run or experiment, a name that fits several runs, fewer runs than ``last``.
        ArtifactError: A run that was *named* is damaged. One that was merely found is left out with a remark.
    """
    if runs:
        chosen = [_named(name, log_dir) for name in runs]
        return Selection(_oldest_first({run.path.resolve(): run for run in chosen}.values()))
    found, remarks = _discover(log_dir, experiments)
    known = {run.experiment for run in found}
    for name in experiments:
        if name not in known:
            choose_runs(Request(log_dir=log_dir, experiment=name))  # its message names close matches
            raise ConfigError(f"No readable run of experiment {name!r}. {' '.join(remarks)}".rstrip())
    if not found:
        skipped = f" Left out: {' '.join(remarks)}" if remarks else ""
        raise ConfigError(
            f"No run to compare below {log_dir / 'runs'}. Run an experiment first, or give log_dir=….{skipped}"
        )
    wanted = set(experiments) or (set(known) if last is not None else {found[-1].experiment})
    matching = [run for run in found if run.experiment in wanted]
    if last is not None:
        if len(matching) < last:
            raise ConfigError(
                f"last={last}, but there are only {len(matching)} runs below {log_dir / 'runs'}."
                " Give a smaller number."
            )
        matching = matching[-last:]
    return Selection(tuple(matching), tuple(remarks))


def _discover(log_dir: Path, experiments: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Every readable run, oldest first; a remark for each folder that is none (of these experiments, if given)."""
    root = log_dir / "runs"
    runs, remarks = [], []
    for path in sorted(root.rglob(RUN_FILE)):
        if not _is_below(path.parent, root, experiments):
            continue
        try:
            runs.append(load_run(path.parent, log_dir=log_dir))
        except ArtifactError as error:
            remarks.append(f"{path.parent.relative_to(root)} is left out: {error}")
    for path in sorted(root.rglob(HYDRA_FOLDER)):
        folder = path.parent
        if path.is_dir() and not (folder / RUN_FILE).exists() and _is_below(folder, root, experiments):
            remarks.append(
                f"{folder.relative_to(root)} is left out: it has no {RUN_FILE}, because it stopped before its first "
                "stage (data not found, or killed)."
            )
    return list(_oldest_first(runs)), remarks


def _named(name: str, log_dir: Path) -> Run:
    return choose_runs(Request(log_dir=log_dir, runs=(name,)))[0][0]


def _is_below(folder: Path, root: Path, experiments: Sequence[str]) -> bool:
    return not experiments or folder.relative_to(root).parent.as_posix() in experiments


def _oldest_first(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=lambda run: (str(run.info.get("created") or ""), run.run_id)))
