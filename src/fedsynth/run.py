"""One run: config → plan → stages → run.json → report. Torch is imported only by :meth:`Run.execute`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedsynth.composition import check_keys, resolved, source_of
from fedsynth.console import announce, banner, console, print_plan
from fedsynth.data.sources import DataSource
from fedsynth.environment import describe_environment, git_commit, prepare_process
from fedsynth.errors import ConfigError, FedSynthError
from fedsynth.pipeline.artifacts import ArtifactStore
from fedsynth.pipeline.budget import describe_prices
from fedsynth.pipeline.planner import PlannedStage, plan_stages
from fedsynth.pipeline.ranks import Ranks
from fedsynth.pipeline.runner import Runner, Selection
from fedsynth.run_folder import marked_simulated
from fedsynth.run_record import RunRecord
from fedsynth.run_settings import check_processes, check_run_settings
from fedsynth.run_sources import obtain_sources, planner_sources, source_records, sources_on_disk
from fedsynth.tracking import check_loggers

log = logging.getLogger(__name__)


class Run:
    """A run of one composed config.

    Args:
        config: The composed config.
        run_dir: Where this run's log, ``run.json`` and report go; renamed if data prove to be simulated. Not
            needed to check or plan.
    """

    def __init__(self, config: DictConfig, run_dir: Path | None = None) -> None:
        self._raw = config
        self.config = resolved(config)
        self.run_dir = run_dir
        self.log_dir = Path(str(self.config["paths"]["log_dir"]))
        self.store = ArtifactStore(self.log_dir / "artifacts")

    def check(self) -> None:
        """Everything that can be known to be wrong before anything runs.

        Raises:
            ConfigError: For an unknown setting, a value out of bounds, a broken graph of stages.
            PrivateInputError: If a server-side stage would read private records.
            BudgetError: If the stages would spend more than privacy.budget.
        """
        check_keys(self.config)
        with self._naming_sources():
            check_run_settings(self.config)
        check_processes(self.config)
        if "logger" not in self.config:
            raise ConfigError(
                "logger is missing, as if logger=[] was said. Say logger=none for no curves, or logger=csv."
            )
        check_loggers(self.config["logger"])
        self.selection.names(self.plan({}))

    def print_plan(self) -> None:
        """Print stages, keys, hits and misses; run nothing, fetch nothing, write nothing."""
        sources, remarks = sources_on_disk(self.config)
        for remark in remarks:
            console().print(remark, markup=False)
        rows = []
        for planned in self.plan(sources):
            stored = planned.key and self.store.find(planned.name, planned.key, verify=False)
            rows.append((planned, "cached" if stored else "missing"))
        print_plan(rows)
        prices = describe_prices({planned.name: planned.price for planned, _ in rows})
        budget = self.config["privacy"].get("budget")
        console().print(
            f"Privacy price ε: {prices}; budget {'not set' if budget is None else budget}.", markup=False
        )

    def plan(self, sources: dict[str, DataSource]) -> list[PlannedStage]:
        """The checked plan; its keys are complete when the sources are."""
        trainer = self.config["trainer"]
        with self._naming_sources():
            budget = self.config["privacy"].get("budget")
            return plan_stages(self.config["stages"], trainer, planner_sources(sources), budget)

    @contextmanager
    def _naming_sources(self) -> Iterator[None]:
        """Add to an error the key that the user wrote, where the faulty one only repeats it."""
        try:
            yield
        except ConfigError as error:
            written = source_of(self._raw, error.key) if error.key else ""
            if not written:
                raise
            raise ConfigError(f"{error} (The value comes from {written}.)", key=written) from error

    @cached_property
    def selection(self) -> Selection:
        """Which stages were asked for."""
        return Selection(self._names("only"), self.config.get("from") or None, self._names("force"))

    def _names(self, key: str) -> tuple[str, ...]:
        value = self.config.get(key)
        names = [value] if isinstance(value, str) else value if value is not None else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            known = ", ".join(self.config["stages"])
            raise ConfigError(f"{key} must name stages, got {value!r}. Say {key}=[NAME]. Stages: {known}.")
        return tuple(name for name in names if name)

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
        sources = ranks.on_first(lambda: obtain_sources(self.config))
        simulated = any(source.simulated for source in sources.values())
        if simulated:
            banner(
                "SIMULATED DATA: no real records were found or fetched. Nothing below is a medical result."
            )
            self.run_dir = marked_simulated(self.run_dir, ranks)
        record = RunRecord(self.run_dir, self.log_dir, self.config, simulated)
        runner = Runner(
            self.store,
            ranks,
            self._loggers,
            self._describe(sources),
            announce,
            sources,
            progressed=record.write,
        )
        done = runner.run(self.plan(sources), self.selection)
        ranks.on_first(lambda: self._report(record.write(done, finished=True)))
        if simulated:
            banner("SIMULATED DATA: see above.")
        ranks.disconnect()

    def _report(self, record: dict[str, Any]) -> None:
        from fedsynth.report.build import build_report
        from fedsynth.report.console import print_headline
        from fedsynth.tracking import log_report

        assert self.run_dir is not None
        try:
            files = build_report([self.run_dir], self.run_dir, log_dir=self.log_dir)
            print_headline(files.content, console())
            log_report(files, record, self.config["logger"], self.run_dir)
            console().print(f"Report: {files.html}")
        except FedSynthError:
            raise
        except Exception as error:
            # The stages are stored and run.json is written: a fault in drawing must not look like a lost run.
            raise FedSynthError(
                f"all stages are done, but the report failed: {error!r}. "
                f"Try: python -m fedsynth.report runs={self.run_dir}"
            ) from error

    def _loggers(self, stage: str, key: str, settings: Any) -> Any:
        from fedsynth.pipeline.fingerprint import canonical
        from fedsynth.tracking import stage_loggers

        assert self.run_dir is not None
        run_dir, experiment = self.run_dir, self.config["experiment_name"]

        def open_loggers(part: str) -> Any:
            name = stage if part == "last" else f"{stage}/{part}"
            return stage_loggers(
                self.config["logger"],
                experiment=experiment,
                run_id=run_dir.name,
                stage=name,
                key=key,
                save_dir=run_dir / "logs" / name,
                config=canonical(settings),
            )

        return open_loggers

    def _describe(self, sources: dict[str, DataSource]) -> Any:
        environment, commit = describe_environment(self.config["trainer"]), git_commit()

        def describe(planned: PlannedStage) -> dict[str, Any]:
            data = [entry for name in planned.stage.data for entry in source_records(sources[name])]
            threads = int(
                planned.trainer.get("num_threads") or environment["threads"]
            )  # a stage may have its own
            return {"data": data, "environment": {**environment, "threads": threads}, "commit": commit}

        return describe
