"""In which settings groups of runs differ, and along which one of them they can be drawn.

One value written in a config shows up in many places (``data.num_clients`` is copied to
``stages.clients.num_clients``), and a sweep may move two values together. Keys that divide the groups in the same
way are one *factor*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Config sections and keys that do not enter the numbers of a run.
IGNORED_SECTIONS = {
    "paths",
    "logger",
    "paper",
    "hydra",
    "run_id",
    "experiment_name",
    "plan",
    "only",
    "from",
    "force",
}
IGNORED_KEYS = {
    "data.dir", "data.download", "data.edaic_root", "trainer.accelerator", "trainer.devices", "trainer.num_nodes",
    "trainer.num_threads", "trainer.strategy", "trainer.compile", "trainer.benchmark", "trainer.deterministic",
}  # fmt: skip
#: Hardware of single stages and groups.
IGNORED_ENDINGS = (".num_threads",)
SEED = "seed"
ABSENT = "—"
#: A sweep may move so many other settings along with the one it is named after.
MAX_COMPANIONS = 2
PRESENT = "yes"
#: Of keys that vary together, these are what a reader thinks of first.
USUAL_SUBJECTS = ("data.dirichlet_alpha", "data.num_clients", "model.normalization", "federated.strategy.name",
                  "privacy.epsilon")  # fmt: skip


@dataclass(frozen=True)
class Factor:
    """One thing that differs between groups: the key to name it by, and its values group by group."""

    key: str
    values: tuple[Any, ...]
    copies: tuple[str, ...] = ()  # keys that hold the same values
    companions: tuple[str, ...] = ()  # keys that hold other values, but change whenever this one does

    @property
    def name(self) -> str:
        """``data.num_clients`` → ``num_clients``; deeper keys keep their last two parts."""
        parts = self.key.split(".")
        return ".".join(parts[-2:] if len(parts) > 2 else parts[-1:])

    @property
    def is_stage(self) -> bool:
        """Whether it says that some groups have a stage the others lack."""
        return self.values.count(PRESENT) + self.values.count(ABSENT) == len(self.values)

    @property
    def is_numeric(self) -> bool:
        return all(
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            for value in self.values
        )


@dataclass(frozen=True)
class SweepAxis:
    """Where each group stands on the axis of a sweep. Positions are numbers, or 0, 1, 2, … for words.

    ``order`` is what groups are sorted by: numbers as numbers, ∞ last, words as words.
    """

    title: str
    positions: tuple[float, ...]
    labels: tuple[str, ...]
    is_numeric: bool
    is_logarithmic: bool
    order: tuple[Any, ...]


def flat_settings(config: dict[str, Any]) -> dict[str, Any]:
    """A config as ``a.b.c`` → value, without what cannot change a number, and without seeds of repetitions."""
    flat: dict[str, Any] = {}
    for section, value in config.items():
        if section not in IGNORED_SECTIONS:
            _flatten(value, section, flat)
    return {
        key: value
        for key, value in flat.items()
        if key not in IGNORED_KEYS and not key.endswith(IGNORED_ENDINGS)
    }


def differing_keys(settings: Sequence[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The keys that differ, with one value per group. A stage that some groups lack is one key, not many.

    Of federated strategies the name is the key; their numbers are others only where one strategy has several.
    """
    stages = [{name for key in flat if (name := _stage_of(key)) is not None} for flat in settings]
    partial = {name for group in stages for name in group if any(name not in other for other in stages)}
    found: dict[str, tuple[Any, ...]] = {
        f"stages.{name}": tuple(PRESENT if name in group else ABSENT for group in stages)
        for name in sorted(partial)
    }
    for key in dict.fromkeys(key for flat in settings for key in flat):
        if _stage_of(key) in partial:
            continue
        values = tuple(flat.get(key, ABSENT) for flat in settings)
        if len({shown(value) for value in values}) > 1:
            found[key] = values
    return {key: values for key, values in found.items() if not _comes_with_its_name(key, found)}


def _comes_with_its_name(key: str, found: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether a number of a strategy differs only because the strategy does: groups of one name have one value."""
    section, dot, number = key.rpartition(".")
    names = found.get(f"{section}.name", ()) if section.endswith("strategy") and dot else ()
    if not names or number == "name":
        return False
    return len({(name, shown(value)) for name, value in zip(names, found[key], strict=True)}) == len(
        set(names)
    )


def find_factors(settings: Sequence[dict[str, Any]], commands: str = "") -> list[Factor]:
    """Differing keys, those that divide the groups alike taken together.

    Args:
        settings: ``flat_settings`` of each group.
        commands: The command lines of the runs. A key that was typed there gives the factor its name.
    """
    partitions: dict[tuple[int, ...], list[str]] = {}
    differing = differing_keys(settings)
    for key, values in differing.items():
        levels: dict[str, int] = {}
        for value in values:
            levels.setdefault(shown(value), len(levels))
        partitions.setdefault(tuple(levels[shown(value)] for value in values), []).append(key)
    factors = []
    for keys in partitions.values():
        ordered = sorted(keys, key=lambda key: _rank(key, differing[key], commands))
        first, rest = differing[ordered[0]], ordered[1:]
        copies = tuple(key for key in rest if _same_values(differing[key], first))
        companions = tuple(key for key in rest if key not in copies)
        factors.append(Factor(ordered[0], first, copies, companions))
    return sorted(factors, key=lambda factor: _rank(factor.key, factor.values, commands))


def sweep_axis(factors: Sequence[Factor]) -> SweepAxis | None:
    """The axis of groups that differ in one factor, or in two that are put together as words; else None.

    Stages that only some groups have are no axis of their own. None also when two groups stand at one place, or when
    so much changes together (two groups of two experiments) that no key can stand for it.
    """
    used = [factor for factor in factors if not factor.is_stage]
    if any(len(factor.companions) > MAX_COMPANIONS for factor in used):
        return None
    if not 1 <= len(used) <= 2 or any(ABSENT in factor.values for factor in used):
        return None
    labels = tuple(
        ", ".join(shown(value) for value in values) for values in zip(*(f.values for f in used), strict=True)
    )
    if len(set(labels)) < len(labels):
        return None
    title = " and ".join(factor.key for factor in used)
    if len(used) == 1 and used[0].is_numeric:
        positions = tuple(float(value) for value in used[0].values)
        wide = min(positions) > 0 and max(positions) / min(positions) >= 8
        return SweepAxis(title, positions, labels, True, wide, positions)
    values = used[0].values
    are_numbers = len(used) == 1 and all(type(value) in (int, float) for value in values)
    order: tuple[Any, ...] = tuple(map(float, values)) if are_numbers else labels
    return SweepAxis(title, tuple(map(float, range(len(labels)))), labels, False, False, order)


def shown(value: Any) -> str:
    """A setting as text; 4 and 4.0 are the same."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "∞" if value == math.inf else f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return str(value)


def _rank(key: str, values: Sequence[Any], commands: str) -> tuple[Any, ...]:
    """Order in which a key would name its factor: typed, usual, not a copy in a stage, a number, by name."""
    usual = USUAL_SUBJECTS.index(key) if key in USUAL_SUBJECTS else len(USUAL_SUBJECTS)
    is_stage = set(values) <= {PRESENT, ABSENT} if all(isinstance(v, str) for v in values) else False
    is_number = all(isinstance(value, (int, float)) for value in values)
    return (
        is_stage,
        f"{key}=" not in commands,
        usual,
        key.startswith("stages."),
        not is_number,
        key.count("."),
        key,
    )


def _same_values(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return [shown(value) for value in first] == [shown(value) for value in second]


def _stage_of(key: str) -> str | None:
    parts = key.split(".")
    return parts[1] if parts[0] == "stages" and len(parts) > 1 else None


def _flatten(value: Any, prefix: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            if key != SEED:
                _flatten(item, f"{prefix}.{key}", into)
    elif prefix != SEED:
        into[prefix] = value
