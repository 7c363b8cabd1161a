"""``run.json``: what a run is and how far it has come. Written at the start and after every stage."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsynth.environment import describe_environment, git_commit
from fedsynth.pipeline.artifacts import explained


def utc_now() -> str:
    """The time now, ISO 8601, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass
class RunRecord:
    """The record of one run, so that a killed one can still be reported.

    Attributes:
        run_dir: The run's folder; its name is the run id.
        log_dir: What artifact paths are relative to.
        config: The resolved config.
        simulated: Whether any data source is simulated.
    """

    run_dir: Path
    log_dir: Path
    config: Mapping[str, Any]
    simulated: bool
    created: str = field(default_factory=utc_now)
    started: float = field(default_factory=time.perf_counter)

    def write(self, done: Mapping[str, Mapping[str, Any]], *, finished: bool = False) -> dict[str, Any]:
        """Write ``run.json`` in one step and return its content.

        Args:
            done: What :meth:`Runner.run` returns, as far as it has come.
            finished: Whether all selected stages are there.

        Raises:
            ArtifactError: If the file cannot be written.
        """
        content = {
            "experiment": self.config["experiment_name"],
            "run_id": self.run_dir.name,
            "seed": self.config["seed"],
            "command": shlex.join([Path(sys.executable).name, "-m", "fedsynth.train", *sys.argv[1:]]),
            "commit": git_commit(),
            "created": self.created,
            "finished": utc_now() if finished else None,
            "seconds": round(time.perf_counter() - self.started, 3),
            "simulated": self.simulated,
            "environment": describe_environment(self.config["trainer"]),
            "config": self.config,
            "stages": {name: self._stage(entry) for name, entry in done.items()},
        }
        path = self.run_dir / "run.json"
        with explained(path):
            self.run_dir.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".tmp").write_text(json.dumps(content, indent=1) + "\n")
            os.replace(path.with_suffix(".tmp"), path)
        return content

    def _stage(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        artifact = entry["artifact"]
        manifest = artifact.manifest
        computed = entry["status"] == "computed"
        return {
            "kind": manifest["kind"],
            "key": artifact.key,
            "path": str(artifact.path.relative_to(self.log_dir)),
            "status": entry["status"],
            "seconds": round(entry["seconds"] if computed else manifest["seconds"], 3),
            "sensitivity": manifest["sensitivity"],
            "side": manifest["side"],
        }
