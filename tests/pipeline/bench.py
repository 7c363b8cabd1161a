"""Plan and run toy stages against a store, in this process or another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedsynth.pipeline.artifacts import ArtifactStore
from fedsynth.pipeline.planner import PlannedStage, Source, plan_stages
from fedsynth.pipeline.ranks import Ranks
from fedsynth.pipeline.runner import Runner, Selection

SOURCES = {"mitdb": Source("digest of real records", private=True)}


def toy(kind: str, *, value: float = 1.0, behavior: str = "normal", **more: Any) -> dict[str, Any]:
    """The config of one toy stage."""
    return {"stage": f"toystages.{kind}", "value": value, "behavior": behavior, **more}


def chain(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """measure → publish → total, with changes by stage."""
    stages = {
        "measure": toy("measure"),
        "publish": toy("publish", inputs={"numbers": "measure"}),
        "total": toy("total", inputs={"release": "publish"}),
    }
    return {name: {**config, **changes.get(name, {})} for name, config in stages.items()}


def plan(
    stages: Mapping[str, Any], trainer: Mapping[str, Any] | None = None, **options: Any
) -> list[PlannedStage]:
    return plan_stages(stages, trainer or {}, options.get("sources", SOURCES))


def describe(planned: PlannedStage) -> dict[str, Any]:
    simulated = bool(os.environ.get("TOY_SIMULATED"))
    data = [{"name": name, "simulated": simulated} for name in planned.stage.data]
    return {"data": data, "environment": {"threads": 1}, "commit": "abc"}


def runner(root: Path, ranks: Ranks | None = None, heard: list[tuple[str, str]] | None = None) -> Runner:
    """A runner that logs nowhere; ``heard`` collects what it announces."""
    return Runner(
        ArtifactStore(root),
        ranks or Ranks(),
        loggers=lambda stage, key, settings: lambda part: nullcontext([]),
        describe=describe,
        announce=lambda planned, status, seconds: (
            heard.append((planned.name, status)) if heard is not None else None
        ),
        sources={"mitdb": None},
    )


def run(
    root: Path, stages: Mapping[str, Any], selection: Selection | None = None, **options: Any
) -> dict[str, Any]:
    """Plan and run; the status of every stage."""
    return runner(root, **options).run(plan(stages), selection or Selection())


def statuses(done: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry["status"] for name, entry in done.items()}


def calls(root: Path) -> list[str]:
    """Names of the stages computed so far, in order."""
    log = root / "calls.log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def start(root: Path, stages: Mapping[str, Any]) -> subprocess.Popen[str]:
    """The same run in a process of its own; prints the statuses as JSON."""
    return subprocess.Popen(
        [sys.executable, __file__, str(root), json.dumps(stages)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


if __name__ == "__main__":
    print(json.dumps(statuses(run(Path(sys.argv[1]), json.loads(sys.argv[2])))))
