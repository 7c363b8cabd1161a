"""From a composed config to a plan: settings checked, the privacy boundary checked, every key known.

Keys depend on settings, inputs, data digests and code, never on results, so the whole plan is known before
anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsynth.errors import ConfigError, PrivateInputError
from fedsynth.pipeline.budget import check_budget
from fedsynth.pipeline.fingerprint import code_digest, fingerprint
from fedsynth.pipeline.settings import build_settings, key_values, unknown_key
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, find_stage
from fedsynth.pipeline.trainer import check_private_trainer, check_trainer

RESERVED = ("stage", "inputs", "trainer", "as_auditor")
# Trainer arguments that say where and how loudly, not what, is computed. All others enter the key, so that a
# run cut short by fast_dev_run or limit_train_batches never passes for a full one.
PLACEMENT = (
    "accelerator", "devices", "num_nodes", "strategy", "sync_batchnorm", "num_threads", "benchmark",
    "enable_progress_bar", "enable_model_summary", "log_every_n_steps", "profiler", "use_distributed_sampler",
)  # fmt: skip


@dataclass(frozen=True)
class PlannedStage:
    """A stage of one run, checked and keyed.

    Attributes:
        key: Empty while its data are still to be fetched.
        price: (ε, δ) that it releases at; None if nothing leaves the clients here, or only the auditor sees it.
            A release of private records that states no price counts as one without guarantee, (∞, 0).
        suppliers: The planned stages that supply the inputs, by role; theirs in turn say what those are made of.
    """

    name: str
    stage: Stage
    settings: Any
    inputs: Mapping[str, str]
    trainer: Mapping[str, Any]
    side: Side
    sensitivity: Sensitivity
    key: str
    key_parts: Mapping[str, Any]
    price: tuple[float, float] | None
    suppliers: Mapping[str, PlannedStage] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Source:
    """What the planner needs of a data source: a digest ('' until it is there), and whether it is private."""

    digest: str
    private: bool


def plan_stages(
    stages: Mapping[str, Mapping[str, Any]],
    trainer: Mapping[str, Any],
    sources: Mapping[str, Source],
    budget: float | None = None,
) -> list[PlannedStage]:
    """The stages in the order they run, each checked against its settings and the privacy boundary.

    Args:
        stages: ``stages`` of the resolved config, by name.
        trainer: Hardware arguments; each stage's own ``trainer`` (its schedule) is laid over them.
        sources: Data sources by name. One without a digest leaves the keys that depend on it empty; one that
            is not named here counts as private and not there.
        budget: The ε that all stages together may spend on one record; None is no limit.

    Raises:
        ConfigError: For an unknown kind, setting or input, or a cycle.
        PrivateInputError: If a server-side stage reads private records or a private artifact.
        BudgetError: If the stages would spend more than the budget.
    """
    check_trainer(trainer, "trainer")
    _check_shapes(stages)
    planned: dict[str, PlannedStage] = {}
    for name in _order(stages):
        planned[name] = _plan_one(name, stages[name], trainer, sources, planned)
    check_budget({name: one.price for name, one in planned.items()}, budget)
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
    settings: Any = build_settings(stage.settings, values, path)
    inputs = _inputs(config, stage, path)
    side = Side.AUDITOR if config.get("as_auditor") else stage.side
    marks = {role: planned[supplier].sensitivity for role, supplier in inputs.items()}
    private_data = [source for source in stage.data if source not in sources or sources[source].private]
    # The boundary first: that an input is private matters more than that it has another form.
    _check_boundary(name, side, inputs, marks, private_data)
    _check_not_of_auditor(name, side, inputs, planned)
    _check_kinds(path, stage, inputs, planned)
    suppliers = {role: planned[supplier] for role, supplier in inputs.items()}
    stage.check_suppliers(settings, suppliers, path)
    everything_read = {
        **_read_marks(side, suppliers),
        **{f"data {source}": Sensitivity.PRIVATE for source in private_data},
    }
    reads_private = Sensitivity.PRIVATE in everything_read.values()
    sensitivity = stage.yields(settings, everything_read)
    # What an auditor computes from private inputs stays there, whatever the stage yields elsewhere.
    if side is Side.AUDITOR and reads_private:
        sensitivity = Sensitivity.PRIVATE
    check_trainer(config.get("trainer") or {}, f"{path}.trainer", trained=stage.trains)
    merged = {**trainer, **(config.get("trainer") or {})}
    price = _price(stage, settings, side, sensitivity, reads_private=reads_private)
    if stage.trains and price is not None and math.isfinite(price[0]):
        check_private_trainer(merged, path)
    parts: dict[str, Any] = {
        "kind": stage.kind,
        "code": code_digest(stage.runs.split(":")[0]),
        "settings": key_values(settings),
        "trainer": {key: value for key, value in merged.items() if key not in PLACEMENT}
        if stage.trains
        else {},
        "inputs": {role: planned[supplier].key for role, supplier in inputs.items()},
        "data": {source: sources[source].digest if source in sources else "" for source in stage.data},
    }
    complete = all(parts["inputs"].values()) and all(parts["data"].values())
    key = fingerprint(parts) if complete else ""
    return PlannedStage(
        name, stage, settings, inputs, merged, side, sensitivity, key, parts, price, suppliers
    )


def _read_marks(side: Side, suppliers: Mapping[str, PlannedStage]) -> dict[str, Sensitivity]:
    """The marks of what is really read: clients and auditors also see the private files of a released artifact."""
    return {
        role: Sensitivity.PRIVATE if one.stage.keeps_private and side is not Side.SERVER else one.sensitivity
        for role, one in suppliers.items()
    }


def _price(
    stage: Stage, settings: Any, side: Side, sensitivity: Sensitivity, *, reads_private: bool
) -> tuple[float, float] | None:
    price = None if side is Side.AUDITOR else stage.price(settings)
    if price is None and reads_private and sensitivity is Sensitivity.RELEASED:
        return math.inf, 0.0
    return price


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


def _check_kinds(
    path: str, stage: Stage, inputs: Mapping[str, str], planned: Mapping[str, PlannedStage]
) -> None:
    """Every input comes from a kind of stage that yields what the role needs."""
    for role, supplier in inputs.items():
        accepted, given = stage.accepts.get(role), planned[supplier].stage
        # Of a stage found by a dotted path nobody here knows what it yields.
        ours = given.runs.startswith("fedsynth.stages.")
        if accepted and ours and given.kind not in accepted:
            fitting = [name for name, other in planned.items() if other.stage.kind in accepted]
            hint = f" Stages that do: {', '.join(fitting)}." if fitting else ""
            raise ConfigError(
                f"{path}.inputs.{role} must name a stage of kind {' or '.join(accepted)}, "
                f"got {supplier!r} of kind {given.kind}.{hint}",
                key=f"{path}.inputs.{role}",
            )


def _check_boundary(
    name: str,
    side: Side,
    inputs: Mapping[str, str],
    marks: Mapping[str, Sensitivity],
    private_data: Sequence[str],
) -> None:
    if side is not Side.SERVER:
        return
    for role, mark in marks.items():
        if mark is Sensitivity.PRIVATE:
            raise PrivateInputError(
                f"stages.{name} runs on the server but its input {role!r} comes from {inputs[role]!r}, "
                "which is private. Feed it a released artifact, or set "
                f"stages.{name}.as_auditor=true if it is a comparison that no server would run."
            )
    for source in private_data:
        raise PrivateInputError(
            f"stages.{name} runs on the server but reads the private records of {source}. Run it "
            "on the clients (side=Side.CLIENT in its Stage), or set "
            f"stages.{name}.as_auditor=true if no server would run it."
        )


def _check_not_of_auditor(
    name: str, side: Side, inputs: Mapping[str, str], planned: Mapping[str, PlannedStage]
) -> None:
    """A client could publish it, in a release whose price leaves out what the auditor did."""
    for role, supplier in inputs.items():
        made = planned[supplier]
        if side is Side.CLIENT and made.side is Side.AUDITOR and made.sensitivity is Sensitivity.PRIVATE:
            raise PrivateInputError(
                f"stages.{name} runs on the clients but its input {role!r} comes from {supplier!r}, which the auditor "
                f"made of private records; nothing of that may leave again. Leave out stages.{supplier}.as_auditor, "
                f"or set stages.{name}.as_auditor=true as well."
            )


def _check_shapes(stages: Mapping[str, Any]) -> None:
    """The parts the pipeline itself reads have the form it relies on."""
    for name, config in stages.items():
        path = f"stages.{name}"
        if not isinstance(config, Mapping) or not isinstance(config.get("stage"), str):
            raise ConfigError(f"{path}.stage is missing: it names the kind of stage to run, got {config!r}.")
        for part in ("inputs", "trainer"):
            if not isinstance(config.get(part) or {}, Mapping):
                raise ConfigError(
                    f"{path}.{part} must be a mapping of names to values, got {config[part]!r}."
                )
        if not isinstance(config.get("as_auditor", False), bool):
            raise ConfigError(f"{path}.as_auditor must be true or false, got {config['as_auditor']!r}.")
        for role, supplier in (config.get("inputs") or {}).items():
            key = f"{path}.inputs.{role}"
            if supplier == "???":
                raise ConfigError(f"{key} is missing: name the stage that supplies it, {key}=NAME.")
            if supplier is not None and supplier not in list(stages):
                hint = unknown_key("It", str(supplier), list(stages)).partition(". ")[2]
                raise ConfigError(f"{key} must name a stage of this run, got {supplier!r}. {hint}")


def _order(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Topological order of the inputs; among equals, the order of the config."""
    done: list[str] = []
    waiting = list(stages)
    while waiting:
        ready = [name for name in waiting if _suppliers(stages[name]) <= set(done)]
        if not ready:
            raise ConfigError(f"the inputs of these stages form a cycle: {', '.join(waiting)}.")
        done.append(ready[0])
        waiting.remove(ready[0])
    return done


def _suppliers(config: Mapping[str, Any]) -> set[str]:
    return {supplier for supplier in (config.get("inputs") or {}).values() if supplier is not None}
