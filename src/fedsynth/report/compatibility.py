"""May these runs share one table? Only when nothing but the seed tells them apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.report.runs import Run

#: A config key of this name is a seed, and runs of one experiment differ in it by design.
#: ``split_seed`` and the like are other keys: another split is another experiment.
SEED_KEY = "seed"


def differences(runs: Sequence[Run]) -> list[str]:
    """Everything but the seed in which the runs differ; [] when their numbers may be averaged.

    Compared, stage by stage where two runs both have the stage: kind, resolved settings, suppliers of the
    inputs, digests of the data files, code digest. Commits are compared only where the artifacts carry
    no code digest. Machine, duration and commands are not compared: they do not enter the numbers.
    """
    found: list[str] = []
    first = runs[0]
    for run in runs[1:]:
        if run.experiment != first.experiment:
            found.append(f"experiment: {first.experiment} in {first.label}, {run.experiment} in {run.label}")
        if run.is_simulated != first.is_simulated:
            names = {True: "SIMULATED data", False: "real data"}
            found.append(
                f"data: {names[first.is_simulated]} in {first.label}, {names[run.is_simulated]} in"
                f" {run.label}"
            )
    seen: dict[str, tuple[Run, Any]] = {}
    for run in runs:
        for key, value in _identity(run):
            if key not in seen:
                seen[key] = (run, value)
            elif not _same(seen[key][1], value):
                other, before = seen[key]
                found.append(f"{key}: {before!r} in {other.label}, {value!r} in {run.label}")
    return found


def require_comparable(runs: Sequence[Run], *, allow_mixed: bool = False) -> list[str]:
    """Refuse runs that are not repetitions of one experiment.

    Returns:
        The differences found: always [] unless ``allow_mixed``, which turns the refusal into a list
        that the report prints.

    Raises:
        ConfigError: No runs; two runs of one seed (they repeat the same numbers, so a spread over them
            means nothing); or, unless ``allow_mixed``, any difference.
    """
    if not runs:
        raise ConfigError("No runs given: a report needs at least one run folder.")
    by_seed: dict[int, Run] = {}
    for run in runs:
        if run.seed in by_seed:
            raise ConfigError(
                f"Runs {by_seed[run.seed].run_id} and {run.run_id} both have seed {run.seed}: they are not"
                " independent repetitions. Give one run of each seed."
            )
        by_seed[run.seed] = run
    found = differences(runs)
    if found and not allow_mixed:
        shown = "\n".join(f"  - {line}" for line in found[:12])
        more = f"\n  - … and {len(found) - 12} more" if len(found) > 12 else ""
        raise ConfigError(
            "These runs differ in more than the seed, so their numbers must not be"
            f" averaged:\n{shown}{more}\n"
            "Report them one by one, or pass allow_mixed=true if the difference cannot matter."
        )
    return found


def _identity(run: Run) -> Iterator[tuple[str, Any]]:
    """What a run's numbers depend on, besides the seed, as (name, value)."""
    has_code_digest = False
    for name, stage in run.stages.items():
        if stage.manifest is None:
            continue
        manifest = stage.manifest
        parts = manifest.get("key_parts") or {}
        yield f"stages.{name} kind", stage.kind
        yield f"stages.{name}.inputs", _suppliers(run, name, manifest)
        settings: dict[str, Any] = {}
        _flatten(parts.get("settings") or manifest.get("settings") or {}, "", settings)
        _flatten(parts.get("trainer") or {}, "trainer", settings)
        yield f"stages.{name} setting names", sorted(settings)
        for key, value in settings.items():
            yield f"stages.{name}.{key}", value
        for item in manifest.get("data") or []:
            yield f"data {item.get('name')}: {item.get('file')}", item.get("sha256")
        if parts.get("code"):
            has_code_digest = True
            yield f"stages.{name} code", parts["code"]
    if not has_code_digest:
        yield "commit", run.commit


def _suppliers(run: Run, name: str, manifest: dict[str, Any]) -> dict[str, Any] | list[str]:
    """Role → stage that supplies it; without a config, the roles alone (their keys differ with the seed)."""
    config = (run.config.get("stages") or {}).get(name) or {}
    roles = sorted(manifest.get("inputs") or {})
    suppliers = config.get("inputs") or {}
    return {role: suppliers.get(role) for role in roles} if suppliers else roles


def _flatten(value: Any, prefix: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            if key != SEED_KEY:
                _flatten(item, f"{prefix}.{key}" if prefix else str(key), into)
    else:
        into[prefix] = value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return bool(a == b)
