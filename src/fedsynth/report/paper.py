"""The published values a run is compared with: ``config.paper``, one file per paper in ``configs/paper``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsynth.errors import ConfigError

_FIELDS = {"stage", "arm", "metric", "mean", "std", "place", "when"}


@dataclass(frozen=True)
class PaperValue:
    """One published number, where it stands, and the settings for which it was published."""

    stage: str
    arm: str
    metric: str
    mean: float
    std: float | None = None
    place: str = ""
    when: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> tuple[str, str, str]:
        return (self.stage, self.arm, self.metric)

    def holds_for(self, config: dict[str, Any]) -> bool:
        """Whether every condition of ``when`` is met; a key the config does not have is not met."""
        return all(_equal(_lookup(config, path), wanted) for path, wanted in self.when.items())


def read_paper_values(config: dict[str, Any]) -> list[PaperValue]:
    """The entries of ``config.paper.values``; [] when the experiment reproduces no paper.

    Raises:
        ConfigError: An entry lacks stage, arm, metric or mean, has an unknown key, or is not finite.
    """
    values = []
    for index, entry in enumerate((config.get("paper") or {}).get("values") or []):
        where = f"paper.values[{index}]"
        unknown = sorted(set(entry) - _FIELDS)
        lacking = [key for key in ("stage", "arm", "metric", "mean") if entry.get(key) is None]
        if unknown or lacking:
            raise ConfigError(
                f"{where} has unknown keys {unknown} and lacks {lacking}, got {entry!r}."
                f" Allowed: {', '.join(sorted(_FIELDS))}; stage, arm, metric and mean are required."
            )
        mean, std = float(entry["mean"]), entry.get("std")
        if not math.isfinite(mean) or (std is not None and not float(std) >= 0):
            raise ConfigError(
                f"{where}: mean must be finite and std null or >= 0, got mean={mean}, std={std}. Check"
                " configs/paper."
            )
        values.append(
            PaperValue(
                stage=str(entry["stage"]),
                arm=str(entry["arm"]),
                metric=str(entry["metric"]),
                mean=mean,
                std=None if std is None else float(std),
                place=str(entry.get("place") or ""),
                when=dict(entry.get("when") or {}),
            )
        )
    return values


def applicable_values(configs: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], PaperValue]:
    """The published values that hold for every one of the resolved configs, by (stage, arm, metric).

    Raises:
        ConfigError: Two entries for one number hold at once.
    """
    chosen: dict[tuple[str, str, str], PaperValue] = {}
    for value in read_paper_values(configs[0]):
        if not all(value.holds_for(config) for config in configs):
            continue
        if value.name in chosen:
            raise ConfigError(
                f"paper.values has two entries for {'/'.join(value.name)} that hold at once"
                f" ({chosen[value.name].place!r} and {value.place!r}). Give them conditions (when:) that"
                " exclude each other."
            )
        chosen[value.name] = value
    return chosen


def withheld_conditions(config: dict[str, Any]) -> list[str]:
    """Conditions of published values that this config does not meet, readable, without repeats."""
    lines = []
    for value in read_paper_values(config):
        if not value.holds_for(config):
            wanted = " and ".join(f"{path} = {item}" for path, item in value.when.items())
            got = ", ".join(str(_lookup(config, path)) for path in value.when)
            line = f"{value.stage}: published for {wanted} (here: {got})"
            if line not in lines:
                lines.append(line)
    return lines


def _lookup(config: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(config, dict) or part not in config:
            return None
        config = config[part]
    return config


def _equal(got: Any, wanted: Any) -> bool:
    try:  # numbers may be written 4, 4.0, ".inf" or "inf" in different files
        if isinstance(got, bool) or isinstance(wanted, bool):
            return got is wanted
        return math.isclose(float(got), float(wanted), rel_tol=1e-9)
    except (TypeError, ValueError):
        return bool(got == wanted)
