"""What every fake run folder of the tests has: rows of metrics, and ``run.json`` around the stages of one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def metric(
    arm: str, name: str, value: float | None, seed: int | None = None, ci: tuple[float, float] | None = None
) -> dict[str, Any]:
    low, high = ci or (None, None)
    return {"arm": arm, "metric": name, "value": value, "seed": seed, "ci_low": low, "ci_high": high}


def write_run(
    log_dir: Path,
    *,
    experiment: str,
    run_id: str,
    seed: int,
    stages: dict[str, dict[str, Any]],
    config: dict[str, Any],
    simulated: bool,
    finished: bool,
    created: str | None = None,
    command: str = "",
) -> Path:
    """Write ``run.json``; seeds give the times of runs their order unless ``created`` does."""
    info = {
        "experiment": experiment,
        "run_id": run_id,
        "seed": seed,
        "command": command or f"python -m fedsynth.train experiment={experiment} seed={seed}",
        "commit": "c0ffee",
        "created": created or f"2030-01-01T00:00:{seed % 60:02d}Z",
        "finished": "2030-01-01T01:00:00Z" if finished else None,
        "seconds": 12.5,
        "simulated": simulated,
        "environment": {
            "python": "3.11",
            "torch": "9.9",
            "lightning": "9.9",
            "threads": 2,
            "device": "cpu",
        },
        "config": config,
        "stages": stages,
    }
    folder = log_dir / "runs" / experiment / run_id
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(info))
    return folder
