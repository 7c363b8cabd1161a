"""From a composed config to a plan: settings checked, the privacy boundary checked, every key known.

Keys depend on settings, inputs, data digests and code, never on results, so the whole plan is known before
anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError, PrivateInputError
from fedsynth.pipeline.fingerprint import code_digest, fingerprint
from fedsynth.pipeline.settings import build_settings, key_values, unknown_key
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, find_stage

RESERVED = ("stage", "inputs", "trainer", "as_auditor")
# Trainer arguments that say where and how loudly, not what, is computed. Everything else enters the key, so that
# a run cut short by fast_dev_run or limit_train_batches never passes for a full one.
PLACEMENT = (
    "accelerator", "devices", "num_nodes", "strategy", "sync_batchnorm", "num_threads", "benchmark",
    "enable_progress_bar", "enable_model_summary", "log_every_n_steps", "profiler", "use_distributed_sampler",
)  # fmt: skip


@dataclass(frozen=True)
class PlannedStage:
    """A stage of one run, checked and keyed. ``key`` is empty while its data are still to be fetched."""

    name: str
    stage: Stage
    settings: Any
    inputs: Mapping[str, str]
    trainer: Mapping[str, Any]
    side: Side
    sensitivity: Sensitivity
    key: str
    key_parts: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """What the planner needs of a data source: a digest, and whether records in it are private."""

    digest: str
    private: bool


def plan_stages(
    stages: Mapping[str, Mapping[str, Any]],
    trainer: Mapping[str, Any],
    sources: Mapping[str, Source],
) -> list[PlannedStage]:
    """The stages in the order they run, each checked against its settings and the privacy boundary.

    Args:
        stages: ``stages`` of the resolved config, by name.
        trainer: Hardware arguments; each stage's own ``trainer`` (its schedule) is laid over them.
        sources: Data sources by name; a missing name leaves the keys that depend on it empty.

    Raises:
        ConfigError: For an unknown kind, setting or input, or a cycle.
        PrivateInputError: If a server-side stage reads private records or a private artifact.
    """
    planned: dict[str, PlannedStage] = {}
    for name in _order(stages):
        planned[name] = _plan_one(name, stages[name], trainer, sources, planned)
    return list(planned.values())


def _plan_one(
    name: str,
    config: Mapping[str, Any],
    trainer: Mapping[str, Any],
    sources: Mapping[str, Source],
    planned: Mapping[str, PlannedStage],
) -> PlannedStage:
    path = f"stages.{name}"
    stage = find_stage(config["stage"], path)
    values = {key: value for key, value in config.items() if key not in RESERVED}
    settings = build_settings(stage.settings, values, path)
    inputs = _inputs(config, stage, path)
    side = Side.AUDITOR if config.get("as_auditor") else stage.side
    marks = {role: planned[supplier].sensitivity for role, supplier in inputs.items()}
    _check_boundary(name, stage, side, inputs, marks, sources)
    # What an auditor computes from private inputs stays with the auditor.
    sensitivity = stage.yields(settings, marks)
    merged = {**trainer, **(config.get("trainer") or {})}
    parts = {
        "kind": stage.kind,
        "code": code_digest(stage.runs.split(":")[0]),
        "settings": key_values(settings),
        "trainer": {key: value for key, value in merged.items() if key not in PLACEMENT} if stage.trains else {},
        "inputs": {role: planned[supplier].key for role, supplier in inputs.items()},
        "data": {source: sources[source].digest for source in stage.data if source in sources},
    }
    complete = all(parts["inputs"].values()) and all(source in sources for source in stage.data)
    key = fingerprint(parts) if complete else ""
    return PlannedStage(name, stage, settings, inputs, merged, side, sensitivity, key, parts)


def _inputs(config: Mapping[str, Any], stage: Stage, path: str) -> dict[str, str]:
    given = dict(config.get("inputs") or {})
    known = stage.roles + stage.optional_roles
    for role in given:
        if role not in known:
            raise ConfigError(unknown_key(f"{path}.inputs.{role}", role, known))
    inputs = {role: supplier for role, supplier in given.items() if supplier is not None}
    for role in stage.roles:
        if role not in inputs:
            raise ConfigError(f"{path}.inputs.{role} is missing: name the stage that supplies it.")
    return inputs


def _check_boundary(
    name: str,
    stage: Stage,
    side: Side,
    inputs: Mapping[str, str],
    marks: Mapping[str, Sensitivity],
    sources: Mapping[str, Source],
) -> None:
    if side is not Side.SERVER:
        return
    for role, mark in marks.items():
        if mark is Sensitivity.PRIVATE:
            raise PrivateInputError(
                f"stages.{name} runs on the server but its input {role!r} comes from {inputs[role]!r}, which is "
                "private. Feed it a released artifact, or set "
                f"stages.{name}.as_auditor=true if it is a comparison that no server would run."
            )
    for source in stage.data:
        if source in sources and sources[source].private:
            raise PrivateInputError(f"stages.{name} runs on the server but reads the private records of {source}.")


def _order(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Topological order of the inputs; among equals, the order of the config."""
    done: list[str] = []
    waiting = list(stages)
    for name in waiting:
        if "stage" not in (stages[name] or {}):
            raise ConfigError(f"stages.{name}.stage is missing: it names the kind of stage to run.")
        for role, supplier in (stages[name].get("inputs") or {}).items():
            if supplier is not None and supplier not in stages:
                raise ConfigError(unknown_key(f"stages.{name}.inputs.{role}={supplier}", str(supplier), list(stages)))
    while waiting:
        ready = [name for name in waiting if _suppliers(stages[name]) <= set(done)]
        if not ready:
            raise ConfigError(f"the inputs of these stages form a cycle: {', '.join(waiting)}.")
        done.append(ready[0])
        waiting.remove(ready[0])
    return done


def _suppliers(config: Mapping[str, Any]) -> set[str]:
    return {supplier for supplier in (config.get("inputs") or {}).values() if supplier is not None}


