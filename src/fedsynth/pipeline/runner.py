"""Run a plan: skip what is there, compute what is missing, commit each stage the moment it is done."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fedsynth.errors import ArtifactError, ConfigError, FedSynthError
from fedsynth.pipeline.artifacts import Artifact, ArtifactStore, is_disk_full
from fedsynth.pipeline.fingerprint import canonical
from fedsynth.pipeline.planner import PlannedStage
from fedsynth.pipeline.public_part import public_part, require_declared
from fedsynth.pipeline.ranks import Ranks
from fedsynth.pipeline.settings import named_files
from fedsynth.pipeline.stage import Outcome, Side, StageContext
from fedsynth.pipeline.threads import stage_threads

log = logging.getLogger(__name__)


class Terminated(SystemExit):
    """SIGTERM, as a scheduler or ``kill`` sends it. Exit status 143, even where nobody catches it."""

    def __init__(self) -> None:
        super().__init__(143)


@dataclass(frozen=True)
class Selection:
    """Which stages to run. ``force`` computes anew even what is stored."""

    only: Sequence[str] = ()
    start: str | None = None
    force: Sequence[str] = ()

    def names(self, plan: Sequence[PlannedStage]) -> set[str]:
        """The selected stages.

        Raises:
            ConfigError: If a name is not in the plan, or the wishes contradict each other.
        """
        known = [planned.name for planned in plan]
        for key, name in [
            *(("only", n) for n in self.only),
            ("from", self.start),
            *(("force", n) for n in self.force),
        ]:
            if name is not None and name not in known:
                raise ConfigError(f"{key} names no stage of this run: {name!r}. Stages: {', '.join(known)}.")
        if self.only and self.start:
            raise ConfigError(
                f"only={list(self.only)} and from={self.start} cannot be combined. Give one of them."
            )
        selected = set(self.only) or (downstream(plan, self.start) if self.start else set(known))
        left_out = [name for name in self.force if name not in selected]
        if left_out:
            raise ConfigError(
                f"force names stages that only or from leaves out: {', '.join(left_out)}. Select them too."
            )
        return selected


@dataclass
class Runner:
    """Runs plans against a store.

    Attributes:
        store: Where artifacts live.
        ranks: The processes of the run; only the first one writes.
        loggers: ``loggers(stage, key, settings)`` gives the stage's own ``loggers(part)``.
        describe: ``describe(planned)`` gives manifest entries about data and environment.
        announce: Called with (planned, "computed" | "cached" | "running", seconds).
        progressed: Called on the first rank, before the first stage and after each, with what is done so far.
    """

    store: ArtifactStore
    ranks: Ranks
    loggers: Callable[[str, str, Any], Callable[[str], AbstractContextManager[list[Any]]]]
    describe: Callable[[PlannedStage], dict[str, Any]]
    announce: Callable[[PlannedStage, str, float], None]
    sources: Mapping[str, Any] = field(default_factory=dict)
    progressed: Callable[[Mapping[str, Any]], Any] = lambda done: None

    def run(self, plan: Sequence[PlannedStage], selection: Selection) -> dict[str, dict[str, Any]]:
        """Every selected stage's artifact, and those of the others that are stored.

        Returns:
            ``{name: {"artifact", "status", "seconds"}}``.

        Raises:
            ArtifactError: Before anything is computed, if an input of a selected stage is neither stored nor
                selected; later, if the store cannot be written.
        """
        selected = selection.names(plan)
        self.ranks.on_first(lambda: self._check_inputs(plan, selected, selection.force))
        done: dict[str, dict[str, Any]] = {}
        for planned in plan:
            self.ranks.on_first(partial(self.progressed, done))
            forced = planned.name in selection.force
            if planned.name in selected:
                done[planned.name] = self._obtain(planned, done, forced=forced)
            elif found := self.ranks.on_first(partial(self._find_unselected, planned)):
                done[planned.name] = {"artifact": found, "status": "cached", "seconds": 0.0}
        return done

    def _obtain(self, planned: PlannedStage, done: Mapping[str, Any], *, forced: bool) -> dict[str, Any]:
        with ExitStack() as stack:

            def begin() -> Artifact | None:
                stack.enter_context(self.store.lock(planned.name, planned.key))
                if forced:
                    self._discard(planned)
                return self._find(planned)

            # Rank zero holds the lock and looks; the others must take the same branch.
            found = self.ranks.on_first(begin)
            if found:
                self.announce(planned, "cached", 0.0)
                return {"artifact": found, "status": "cached", "seconds": 0.0}
            self.announce(planned, "running", 0.0)
            start = time.perf_counter()
            artifact = self._compute(planned, self._inputs(planned, done), start)
        seconds = time.perf_counter() - start
        self.announce(planned, "computed", seconds)
        return {"artifact": artifact, "status": "computed", "seconds": seconds}

    def _find_unselected(self, planned: PlannedStage) -> Artifact | None:
        if not self.store.folder(planned.name, planned.key).exists():
            return None
        # Under the lock: looking may set a damaged artifact aside, which must not hit another run's new one.
        with self.store.lock(planned.name, planned.key):
            return self._find(planned)

    def _find(self, planned: PlannedStage) -> Artifact | None:
        """The stored artifact, with the files that this run names: those of the run that made it may be gone."""
        found, files = self.store.find(planned.name, planned.key), named_files(planned.settings)
        if found is None or not files:
            return found
        settings = {**found.manifest["settings"], **canonical(files)}
        return replace(found, manifest={**found.manifest, "settings": settings})

    def _discard(self, planned: PlannedStage) -> None:
        shutil.rmtree(self.store.folder(planned.name, planned.key), ignore_errors=True)
        shutil.rmtree(self.store.scratch(planned.name, planned.key), ignore_errors=True)

    def _check_inputs(self, plan: Sequence[PlannedStage], selected: set[str], forced: Sequence[str]) -> None:
        stored = {p.name for p in plan if self.store.find(p.name, p.key, verify=False)}
        for planned in plan:
            if planned.name in selected and (planned.name in forced or planned.name not in stored):
                for supplier in planned.inputs.values():
                    if supplier not in selected | stored:
                        raise _missing_input(planned.name, supplier)

    def _inputs(self, planned: PlannedStage, done: Mapping[str, Any]) -> dict[str, Artifact]:
        for supplier in planned.inputs.values():
            if supplier not in done:
                raise _missing_input(planned.name, supplier)
        return {role: done[supplier]["artifact"] for role, supplier in planned.inputs.items()}

    def _compute(self, planned: PlannedStage, inputs: Mapping[str, Artifact], start: float) -> Artifact:
        output = self.ranks.on_first(lambda: self.store.fresh_output(planned.name, planned.key))
        scratch = output.parent
        if planned.side is Side.SERVER:
            given = inputs
            inputs = self.ranks.on_first(
                lambda: {role: public_part(one, scratch / "inputs" / role) for role, one in given.items()}
            )
        context = StageContext(
            name=planned.name,
            key=planned.key,
            output=output,
            scratch=scratch,
            trainer=planned.trainer,
            sources={name: self.sources[name] for name in planned.stage.data},
            loggers=self.loggers(planned.name, planned.key, planned.settings),
            learning_rate=getattr(planned.settings, "learning_rate", None),
            rank=self.ranks.rank,
            world_size=self.ranks.world_size if planned.stage.trains else 1,
        )

        def call() -> Outcome:
            try:
                return planned.stage.load()(planned.settings, inputs, context)
            except SystemExit as error:
                # Lightning answers Ctrl-C with sys.exit: give the user the same message as anywhere else.
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise KeyboardInterrupt from error
                # SIGTERMException carries no exit status: without this a killed run would pass for a finished one.
                if type(error).__name__ == "SIGTERMException":
                    raise Terminated from error
                raise
            except FedSynthError as error:
                # Pure packages know nothing of stages: their messages would not say whose input was at fault.
                if f"stages.{planned.name}" not in str(error):
                    error.args = (f"stages.{planned.name}: {error}",)
                raise
            except Exception as error:
                if not is_disk_full(error):
                    raise
                raise ArtifactError(
                    f"stages.{planned.name} could not write to {scratch}: the disk is full. "
                    "Free some space or set LOG_DIR (paths.log_dir) elsewhere; finished stages are kept, the "
                    "same command goes on from there."
                ) from error

        def commit() -> Artifact:
            require_declared(
                planned.name,
                keeps_private=planned.stage.keeps_private,
                output=output,
                notes=outcome.notes,
            )
            manifest = self._manifest(planned, inputs, outcome, time.perf_counter() - start)
            return self.store.commit(planned.name, planned.key, manifest)

        # Every process takes part in training, which has barriers of its own.
        with stage_threads(planned.trainer, self.ranks.world_size):
            outcome = call() if planned.stage.trains else self.ranks.on_first(call)
        return self.ranks.on_first(commit)

    def _manifest(
        self, planned: PlannedStage, inputs: Mapping[str, Artifact], outcome: Outcome, seconds: float
    ) -> dict[str, Any]:
        described = self.describe(planned)
        simulated = any(entry["simulated"] for entry in described["data"])
        return {
            "kind": planned.stage.kind,
            "side": planned.side.value,
            "sensitivity": planned.sensitivity.value,
            "simulated": simulated or any(artifact.manifest["simulated"] for artifact in inputs.values()),
            "settings": canonical(planned.settings),
            "trainer": canonical(dict(planned.trainer)) if planned.stage.trains else {},
            "key_parts": canonical(dict(planned.key_parts)),
            "inputs": {role: artifact.key for role, artifact in inputs.items()},
            "metrics": [vars(metric) for metric in outcome.metrics],
            "ledger": outcome.ledger,
            "uncovered": list(planned.stage.uncovered(planned.settings)),
            "notes": outcome.notes,
            "seconds": round(seconds, 3),
            **described,
        }


def _missing_input(name: str, supplier: str) -> ArtifactError:
    return ArtifactError(
        f"stages.{name} needs {supplier!r}, which is not stored and not selected. "
        f"Run without only/from, or add {supplier} to only=[…]."
    )


def downstream(plan: Sequence[PlannedStage], start: str) -> set[str]:
    """A stage and all that depend on it, directly or not."""
    names = {start}
    for planned in plan:
        if names & set(planned.inputs.values()):
            names.add(planned.name)
    return names
