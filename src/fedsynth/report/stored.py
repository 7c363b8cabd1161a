"""Arrays and curves that stages left in their artifacts, read for the report."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import ArtifactError
from fedsynth.report.runs import Run, StageResult

Array = NDArray[Any]


class NotRunError(Exception):
    """What a figure or table needs is not there; the message completes "left out, …"."""


class NotAskedError(NotRunError):
    """The run's config has no stage that would leave it: nothing is missing."""


def not_run(kind: str) -> str:
    return f"no stage of kind {kind} has been run"


def missing(run: Run, *kinds: str) -> NotRunError:
    """The error for kinds of stages that left nothing: not run, or none of them even asked for."""
    asked = {(stage or {}).get("stage") for stage in (run.config.get("stages") or {}).values()}
    is_known = asked and None not in asked  # a config written by hand may name no kinds
    nobody_asked = is_known and not asked & set(kinds)
    return (NotAskedError if nobody_asked else NotRunError)(", ".join(not_run(kind) for kind in kinds))


def find_stage(run: Run, kind: str) -> StageResult:
    found = run.of_kind(kind)
    if not found:
        raise missing(run, kind)
    return found[0]


def read_scores(stage: StageResult) -> tuple[Array, Array]:
    """Labels [n] and probabilities [seed, n] on the test records."""
    probability, label = read_arrays(stage, "scores.safetensors", "test.probability", "test.label")
    label, probability = label.reshape(-1).astype(int), np.atleast_2d(probability)
    if probability.shape[-1] != len(label):
        raise ArtifactError(
            f"{stage.path / 'scores.safetensors'}: test.probability must be [seed, {len(label)}],"
            f" got {list(probability.shape)}. Delete the artifact folder and run again."
        )
    return label, probability


def read_arrays(stage: StageResult, file: str, *names: str) -> tuple[Array, ...]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = stage.path / file
    if not path.is_file():
        raise NotRunError(f"stage {stage.name} left no {file}")
    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise ArtifactError(f"{path} is damaged ({error}). Delete its folder and run again.") from error
    lacking = [name for name in names if name not in arrays]
    if lacking:
        held = ", ".join(sorted(arrays))
        raise ArtifactError(f"{path} lacks {', '.join(lacking)}; it holds {held}. Run again.")
    for name in names:
        if count := int((~np.isfinite(arrays[name])).sum()):
            raise NotRunError(
                f"stage {stage.name} diverged: {file} holds {count} non-finite values in {name}"
            )
    return tuple(arrays[name] for name in names)


def read_history(stage: StageResult) -> list[dict[str, Any]]:
    path = stage.path / "history.json"
    if not path.is_file():
        raise NotRunError(f"stage {stage.name} left no history.json")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ArtifactError(f"{path} is no valid JSON ({error}). Delete its folder and run again.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ArtifactError(f"{path} must hold a list of objects, one per round or epoch. Run again.")
    if not rows:
        raise NotRunError(f"history.json of stage {stage.name} is empty")
    return rows
