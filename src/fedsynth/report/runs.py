"""Reading run folders: ``run.json`` of a run and ``manifest.json`` of every artifact it used.

A run may be partial: a stage that was not reached is absent, an artifact that was deleted has no manifest.
A file that is there but cannot be understood is an error, never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.errors import ArtifactError
from fedsynth.pipeline.stage import PRIVATE
from fedsynth.report.form import MANIFEST, RUN, check_form

RUN_FILE = "run.json"
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True)
class StageResult:
    """One stage of one run, and the artifact it computed or took from the cache."""

    name: str
    kind: str
    key: str
    path: Path
    status: str
    seconds: float | None
    sensitivity: str
    side: str
    manifest: dict[str, Any] | None  # None: the artifact folder is gone

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows ``{arm, metric, value, seed, ci_low, ci_high}`` the stage measured."""
        return list((self.manifest or {}).get("metrics") or [])

    @property
    def notes(self) -> dict[str, Any]:
        """All of them, those kept from servers too: a report is the auditor's."""
        notes = dict((self.manifest or {}).get("notes") or {})
        kept_from_servers = notes.pop(PRIVATE, {})
        return notes | kept_from_servers


@dataclass(frozen=True)
class Run:
    """One run: what was asked (config), what it is (seed, commit), what it left (stages)."""

    path: Path
    info: dict[str, Any]
    stages: dict[str, StageResult]

    @property
    def experiment(self) -> str:
        return str(self.info["experiment"])

    @property
    def run_id(self) -> str:
        return str(self.info["run_id"])

    @property
    def seed(self) -> int:
        return int(self.info["seed"])

    @property
    def config(self) -> dict[str, Any]:
        return self.info.get("config") or {}

    @property
    def commit(self) -> str:
        return str(self.info.get("commit") or "unknown")

    @property
    def is_finished(self) -> bool:
        return bool(self.info.get("finished"))

    @property
    def is_simulated(self) -> bool:
        """Whether the run, or any artifact in it, stands on simulated data: one is enough."""
        return bool(self.info.get("simulated")) or any(
            bool((stage.manifest or {}).get("simulated")) for stage in self.stages.values()
        )

    @property
    def label(self) -> str:
        return f"{self.run_id} (seed {self.seed})"

    def of_kind(self, kind: str) -> list[StageResult]:
        """Stages of one kind whose artifact is there, in the order of the run."""
        return [stage for stage in self.stages.values() if stage.kind == kind and stage.manifest is not None]

    def stages_not_run(self) -> list[str]:
        """Stages the config asks for that left no artifact, in config order."""
        asked = self.config.get("stages") or {}
        done = {name for name, stage in self.stages.items() if stage.manifest is not None}
        return [name for name, value in asked.items() if value is not None and name not in done]


def load_run(run_dir: Path, *, log_dir: Path) -> Run:
    """Read one run folder.

    Args:
        run_dir: Holds ``run.json``.
        log_dir: What relative artifact paths in ``run.json`` are relative to.

    Raises:
        ArtifactError: ``run.json`` is missing, damaged or lacks a field; a manifest is damaged or
            belongs to another artifact than the run says.
    """
    run_dir = Path(run_dir)
    info = _read_json(
        run_dir / RUN_FILE, what="a run", todo="Give a folder below <log_dir>/runs/<experiment>/."
    )
    missing = [name for name in ("experiment", "run_id", "seed", "stages") if name not in info]
    if missing:
        raise ArtifactError(
            f"{run_dir / RUN_FILE} lacks {', '.join(missing)}. It was not written by this version: run again."
        )
    check_form(
        info, RUN, run_dir / RUN_FILE, "Delete the run's folder and run again: what is stored is kept."
    )
    stages = {name: _load_stage(name, entry, Path(log_dir)) for name, entry in (info["stages"] or {}).items()}
    return Run(path=run_dir, info=info, stages=stages)


def find_runs(log_dir: Path, experiment: str | None = None) -> list[Run]:
    """All runs below ``log_dir/runs``, newest first; of one experiment when it is named.

    A folder without ``run.json`` is no run. A damaged ``run.json`` is skipped here: one broken run
    must not hide the others (naming that run directly says what is wrong with it).
    """
    runs = []
    for path in sorted((Path(log_dir) / "runs").rglob(RUN_FILE)):
        try:
            info = _read_json(path, what="a run", todo="")
            if experiment is not None and info.get("experiment") != experiment:
                continue
            runs.append(load_run(path.parent, log_dir=log_dir))
        except ArtifactError:
            continue
    return sorted(runs, key=lambda run: (str(run.info.get("created") or ""), run.run_id), reverse=True)


def quote_runs(runs: Iterable[Run], limit: int = 6) -> str:
    """The runs' labels for an error message, shortened."""
    labels = [run.label for run in runs]
    return ", ".join(labels[:limit]) + (f" and {len(labels) - limit} more" if len(labels) > limit else "")


def _load_stage(name: str, entry: dict[str, Any] | None, log_dir: Path) -> StageResult:
    entry = entry or {}
    path = Path(entry.get("path") or "")
    path = path if path.is_absolute() else log_dir / path
    manifest = None
    if (path / MANIFEST_FILE).is_file():
        manifest = _read_json(
            path / MANIFEST_FILE, what=f"the artifact of stage {name}", todo="Delete it and run again."
        )
        check_form(manifest, MANIFEST, path / MANIFEST_FILE, "Delete its folder and run again.")
        if entry.get("key") and manifest.get("key") and manifest["key"] != entry["key"]:
            raise ArtifactError(
                f"{path} holds the artifact {manifest['key'][:12]}, but the run used {entry['key'][:12]} for"
                f" stage {name}. The folder was replaced after the run: run the experiment again."
            )
    seconds = entry.get("seconds")
    return StageResult(
        name=name,
        kind=str(entry.get("kind") or (manifest or {}).get("kind") or name),
        key=str(entry.get("key") or ""),
        path=path,
        status=str(entry.get("status") or "unknown"),
        seconds=None if seconds is None else float(seconds),
        sensitivity=str(entry.get("sensitivity") or (manifest or {}).get("sensitivity") or ""),
        side=str(entry.get("side") or (manifest or {}).get("side") or ""),
        manifest=manifest,
    )


def _read_json(path: Path, *, what: str, todo: str) -> dict[str, Any]:
    if not path.is_file():
        raise ArtifactError(f"{path} not found, so {path.parent} is not {what}. {todo}".rstrip())
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{path} is not valid JSON ({error}): {what} is damaged. {todo}".rstrip()
        ) from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} must hold a JSON object, got {type(value).__name__}. {todo}".rstrip())
    return value
