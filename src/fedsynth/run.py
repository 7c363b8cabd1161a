"""One run: config → plan → stages → run.json → report. Torch is imported only by :meth:`Run.execute`."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedsynth.composition import resolved, source_of
from fedsynth.console import announce, banner, console, print_plan
from fedsynth.data.sources import DataSource, resolve_sources
from fedsynth.environment import describe_environment, git_commit, prepare_process
from fedsynth.errors import ConfigError, DataError, FedSynthError
from fedsynth.pipeline.artifacts import ArtifactStore
from fedsynth.pipeline.planner import PlannedStage, Source, plan_stages
from fedsynth.pipeline.ranks import Ranks
from fedsynth.pipeline.runner import Runner, Selection
from fedsynth.pipeline.settings import build_settings, setting
from fedsynth.pipeline.stage import find_stage

log = logging.getLogger(__name__)
# Sources that hold nobody's private records: public by construction of the experiments.
PUBLIC_SOURCES = ("chestmnist",)


@dataclass(frozen=True)
class RunSettings:
    """The keys of a run that belong to no stage."""

    experiment_name: str = setting()
    run_id: str = setting()
    seed: int = setting(minimum=0)
    source: str = setting(one_of=("auto", "real", "simulated"))
    num_threads: int = setting(minimum=0, remedy="0 leaves the number to torch.")


class Run:
    """A run of one composed config.

    Args:
        config: The composed config.
        run_dir: Where this run's log, ``run.json`` and report go. Not needed to check or plan.
    """

    def __init__(self, config: DictConfig, run_dir: Path | None = None) -> None:
        self._raw = config
        self.config = resolved(config)
        self.run_dir = run_dir
        self.log_dir = Path(self.config["paths"]["log_dir"])
        self.store = ArtifactStore(self.log_dir / "artifacts")

    def check(self) -> None:
        """Everything that can be known to be wrong before anything runs.

        Raises:
            ConfigError: For an unknown setting, a value out of bounds, a broken graph of stages.
            PrivateInputError: If a server-side stage would read private records.
        """
        values = {
            "experiment_name": self.config["experiment_name"],
            "run_id": self.config["run_id"],
            "seed": self.config["seed"],
            "source": self.config["data"]["source"],
            "num_threads": self.config["trainer"].get("num_threads", 0),
        }
        build_settings(RunSettings, values, "(run)")
        self.selection.names(self.plan({}))

    def print_plan(self) -> None:
        """Print stages, keys, hits and misses; run nothing, fetch nothing, write nothing."""
        try:
            sources = self.sources(download=False)
        except DataError as error:
            console().print(f"Data are not there yet: {error}", markup=False)
            sources = {}
        rows = []
        for planned in self.plan(sources):
            stored = planned.key and self.store.find(planned.name, planned.key, verify=False)
            rows.append((planned, "cached" if stored else "missing"))
        print_plan(rows)

    def plan(self, sources: dict[str, DataSource]) -> list[PlannedStage]:
        """The checked plan; its keys are complete when the sources are."""
        trainer = self.config["trainer"]
        known = {name: Source(source.digest, name not in PUBLIC_SOURCES) for name, source in sources.items()}
        try:
            return plan_stages(self.config["stages"], trainer, known)
        except ConfigError as error:
            written = source_of(self._raw, error.key) if error.key else ""
            raise ConfigError(f"{error} (The value comes from {written}.)" if written else str(error)) from error

    def sources(self, *, download: bool) -> dict[str, DataSource]:
        """The data sources that the stages name, located and digested."""
        data = self.config["data"]
        names = {name for key, stage in self.config["stages"].items() for name in find_stage(stage["stage"], key).data}
        return resolve_sources(
            sorted(names),
            Path(data["dir"]),
            mode=data["source"],
            download=download and data["download"],
            simulated_dir=self.log_dir / "simulated",
            filenames=data.get("files") or {},
            size=data.get("image_size", 28),
        )

    @cached_property
    def selection(self) -> Selection:
        """Which stages were asked for."""
        only, force = self.config.get("only") or [], self.config.get("force") or []
        return Selection(tuple(only), self.config.get("from") or None, tuple(force))

    def execute(self) -> None:
        """Run the stages, write ``run.json`` and the report.

        Raises:
            FedSynthError: For anything the user can mend. Finished stages stay in the store.
        """
        assert self.run_dir is not None
        self.check()
        self.store.check_writable()
        ranks = Ranks.from_environment()
        prepare_process(self.config["trainer"])
        ranks.connect()
        sources = ranks.broadcast(self.sources(download=True) if ranks.is_first else None)
        simulated = any(source.simulated for source in sources.values())
        if simulated:
            banner("SIMULATED DATA: no real records were found or fetched. Nothing below is a medical result.")
        started, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
        runner = Runner(self.store, ranks, self._loggers, self._describe(sources), announce, sources)
        done = runner.run(self.plan(sources), self.selection)
        if ranks.is_first:
            record = self._record(done, started, time.perf_counter() - clock, simulated)
            self._finish(record)
        if simulated:
            banner("SIMULATED DATA: see above.")
        ranks.broadcast(None)
        ranks.disconnect()

    def _finish(self, record: dict[str, Any]) -> None:
        from fedsynth.report.build import build_report
        from fedsynth.tracking import log_report

        assert self.run_dir is not None
        self.run_dir.mkdir(parents=True, exist_ok=True)
        (self.run_dir / "run.json").write_text(json.dumps(record, indent=1) + "\n")
        try:
            files = build_report([self.run_dir], self.run_dir, log_dir=self.log_dir)
            log_report(files, record, self.config["logger"], self.run_dir)
        except FedSynthError:
            raise
        except Exception as error:
            # The stages are stored and run.json is written: a fault in drawing must not look like a lost run.
            raise FedSynthError(
                f"all stages are done, but the report failed: {error!r}. Try: python -m fedsynth.report runs={self.run_dir}"
            ) from error

    def _loggers(self, stage: str, key: str, settings: Any) -> Any:
        from fedsynth.pipeline.fingerprint import canonical
        from fedsynth.tracking import stage_loggers

        assert self.run_dir is not None
        experiment, run_id = self.config["experiment_name"], self.run_dir.name

        def open_loggers(save_dir: Path) -> Any:
            return stage_loggers(
                self.config["logger"],
                experiment=experiment,
                run_id=run_id,
                stage=stage,
                key=key,
                save_dir=save_dir,
                config=canonical(settings),
            )

        return open_loggers

    def _describe(self, sources: dict[str, DataSource]) -> Any:
        environment, commit = describe_environment(self.config["trainer"]), git_commit()

        def describe(planned: PlannedStage) -> dict[str, Any]:
            data = [entry for name in planned.stage.data for entry in source_records(sources[name])]
            return {"data": data, "environment": environment, "commit": commit}

        return describe

    def _record(self, done: dict[str, Any], started: str, seconds: float, simulated: bool) -> dict[str, Any]:
        stages = {}
        for name, entry in done.items():
            artifact = entry["artifact"]
            manifest = artifact.manifest
            stages[name] = {
                "kind": manifest["kind"],
                "key": artifact.key,
                "path": str(artifact.path.relative_to(self.log_dir)),
                "status": entry["status"],
                "seconds": round(entry["seconds"] if entry["status"] == "computed" else manifest["seconds"], 3),
                "sensitivity": manifest["sensitivity"],
                "side": manifest["side"],
            }
        assert self.run_dir is not None
        return {
            "experiment": self.config["experiment_name"],
            "run_id": self.run_dir.name,
            "seed": self.config["seed"],
            "command": shlex.join([Path(sys.executable).name, "-m", "fedsynth.train", *sys.argv[1:]]),
            "commit": git_commit(),
            "created": started,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 3),
            "simulated": simulated,
            "environment": describe_environment(self.config["trainer"]),
            "config": self.config,
            "stages": stages,
        }


def source_records(source: DataSource) -> list[dict[str, Any]]:
    """Manifest entries of a data source: one per file, or one for a directory of many."""
    common = {"name": source.name, "simulated": source.simulated, "licence": source.licence}
    if len(source.files) > 3:
        known = all(file.known for file in source.files)
        name = f"{source.path.name}/ ({len(source.files)} files)"
        return [{**common, "file": name, "sha256": source.digest, "md5": None, "known": known}]
    return [
        {**common, "file": file.name, "sha256": file.sha256, "md5": file.md5, "known": file.known}
        for file in source.files
    ]
