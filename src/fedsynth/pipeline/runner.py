"""Run a plan: skip what is there, compute what is missing, commit each stage the moment it is done."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.pipeline.artifacts import Artifact, ArtifactStore
from fedsynth.pipeline.fingerprint import canonical
from fedsynth.pipeline.planner import PlannedStage
from fedsynth.pipeline.ranks import Ranks
from fedsynth.pipeline.stage import Outcome, StageContext

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Selection:
    """Which stages to run. ``force`` computes anew even what is stored."""

    only: Sequence[str] = ()
    start: str | None = None
    force: Sequence[str] = ()

    def names(self, plan: Sequence[PlannedStage]) -> set[str]:
        """The selected stages.

        Raises:
            ConfigError: If a name is not in the plan.
        """
        known = [planned.name for planned in plan]
        for key, name in [*(("only", n) for n in self.only), ("from", self.start), *(("force", n) for n in self.force)]:
            if name is not None and name not in known:
                raise ConfigError(f"{key} names no stage of this run: {name!r}. Stages: {', '.join(known)}.")
        if self.only:
            return set(self.only)
        return downstream(plan, self.start) if self.start else set(known)


@dataclass
class Runner:
    """Runs plans against a store.

    Attributes:
        store: Where artifacts live.
        ranks: The processes of the run; only the first one writes.
        loggers: ``loggers(stage, key, settings)`` gives the stage's own ``loggers(save_dir)``.
        describe: ``describe(planned)`` gives manifest entries about data and environment.
        announce: Called with (planned, "computed" | "cached" | "running", seconds).
    """

    store: ArtifactStore
    ranks: Ranks
    loggers: Callable[[str, str, Any], Callable[[Path], AbstractContextManager[list[Any]]]]
    describe: Callable[[PlannedStage], dict[str, Any]]
    announce: Callable[[PlannedStage, str, float], None]
    sources: Mapping[str, Any] = field(default_factory=dict)

    def run(self, plan: Sequence[PlannedStage], selection: Selection) -> dict[str, dict[str, Any]]:
        """Every selected stage's artifact: {name: {"artifact", "status", "seconds"}}.

        Raises:
            ArtifactError: If an input of a selected stage is neither stored nor selected.
        """
        selected = selection.names(plan)
        done: dict[str, dict[str, Any]] = {}
        for planned in plan:
            forced = planned.name in selection.force
            if planned.name in selected:
                done[planned.name] = self._obtain(planned, done, forced=forced)
            elif found := self._find_shared(planned):
                done[planned.name] = {"artifact": found, "status": "cached", "seconds": 0.0}
        return done

    def _obtain(self, planned: PlannedStage, done: Mapping[str, Any], *, forced: bool) -> dict[str, Any]:
        with ExitStack() as stack:
            if self.ranks.is_first:
                stack.enter_context(self.store.lock(planned.name, planned.key))
                if forced:
                    self._discard(planned)
            found = self._find_shared(planned)
            if found:
                self.announce(planned, "cached", 0.0)
                return {"artifact": found, "status": "cached", "seconds": 0.0}
            self.announce(planned, "running", 0.0)
            start = time.perf_counter()
            artifact = self._compute(planned, self._inputs(planned, done), start)
        seconds = time.perf_counter() - start
        self.announce(planned, "computed", seconds)
        return {"artifact": artifact, "status": "computed", "seconds": seconds}

    def _find_shared(self, planned: PlannedStage) -> Artifact | None:
        """What rank zero finds; the other ranks must take the same branch."""
        found = self.store.find(planned.name, planned.key) if self.ranks.is_first else None
        return self.ranks.broadcast(found)

    def _discard(self, planned: PlannedStage) -> None:
        shutil.rmtree(self.store.folder(planned.name, planned.key), ignore_errors=True)
        shutil.rmtree(self.store.scratch(planned.name, planned.key), ignore_errors=True)

    def _inputs(self, planned: PlannedStage, done: Mapping[str, Any]) -> dict[str, Artifact]:
        inputs = {}
        for role, supplier in planned.inputs.items():
            if supplier not in done:
                raise ArtifactError(
                    f"stages.{planned.name} needs {supplier!r}, which is not stored and not selected. "
                    f"Run without only/from, or add {supplier} to only=[…]."
                )
            inputs[role] = done[supplier]["artifact"]
        return inputs

    def _compute(self, planned: PlannedStage, inputs: Mapping[str, Artifact], start: float) -> Artifact:
        scratch = self.store.scratch(planned.name, planned.key)
        if self.ranks.is_first:
            output = self.store.fresh_output(planned.name, planned.key)
        self.ranks.broadcast(None)
        output = scratch / "output"
        context = StageContext(
            name=planned.name,
            key=planned.key,
            output=output,
            scratch=scratch,
            trainer=planned.trainer,
            sources={name: self.sources[name] for name in planned.stage.data},
            loggers=self.loggers(planned.name, planned.key, planned.settings),
            rank=self.ranks.rank,
            world_size=self.ranks.world_size if planned.stage.trains else 1,
        )
        failure: BaseException | None = None
        outcome = Outcome()
        if planned.stage.trains or self.ranks.is_first:
            try:
                outcome = planned.stage.load()(planned.settings, inputs, context)
            except BaseException as error:
                if self.ranks.world_size == 1 or planned.stage.trains:
                    raise
                failure = error
        # A computed stage that failed on rank zero must not leave the others waiting for ever.
        failed = self.ranks.broadcast(repr(failure) if failure else "")
        if failed:
            raise failure or ArtifactError(f"stages.{planned.name} failed on rank zero: {failed}")
        artifact = None
        if self.ranks.is_first:
            manifest = self._manifest(planned, inputs, outcome, time.perf_counter() - start)
            artifact = self.store.commit(planned.name, planned.key, manifest)
        return self.ranks.broadcast(artifact)

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


def downstream(plan: Sequence[PlannedStage], start: str) -> set[str]:
    """A stage and all that depend on it, directly or not."""
    names = {start}
    for planned in plan:
        if names & set(planned.inputs.values()):
            names.add(planned.name)
    return names
