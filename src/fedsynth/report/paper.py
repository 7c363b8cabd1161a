"""The published values a run is compared with: ``config.paper``, one file per paper in ``configs/paper``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsynth.errors import ConfigError

_FIELDS = {"stage", "arm", "metric", "mean", "std", "interval", "place", "when"}


@dataclass(frozen=True)
class PaperValue:
    """One published number, where it stands, and the settings for which it was published.

    Attributes:
        interval: Published 95 % bounds, where there are any.
        decimals: Digits after the point that the paper prints.
    """

    stage: str
    arm: str
    metric: str
    mean: float
    std: float | None = None
    interval: tuple[float, float] | None = None
    place: str = ""
    when: dict[str, Any] = field(default_factory=dict)
    decimals: int = 4

    @property
    def rounding(self) -> float:
        """How far the number behind the printed one may lie from it."""
        return float(0.5 * 10.0**-self.decimals)

    @property
    def text(self) -> str:
        """As the paper prints it."""
        return f"{self.mean:.{self.decimals}f}"

    @property
    def name(self) -> tuple[str, str, str]:
        return (self.stage, self.arm, self.metric)

    def unmet(self, config: dict[str, Any]) -> dict[str, Any]:
        """The conditions of ``when`` that the config does not meet; a key it does not have counts as null."""
        return {
            path: wanted for path, wanted in self.when.items() if not _equal(_lookup(config, path), wanted)
        }


def read_paper_values(config: dict[str, Any]) -> list[PaperValue]:
    """The entries of ``config.paper.values``; [] when the experiment reproduces no paper.

    The conditions of ``config.paper.when`` hold for every entry, as far as the run has the stages they are about: an
    encoder alone is still the paper's encoder. ``config.paper.decimals`` is how many the paper prints (4 if absent).

    Raises:
        ConfigError: An entry lacks stage, arm, metric or mean, has an unknown key, or is not finite; ``decimals`` is
            no whole number of 0 to 9.
    """
    values = []
    decimals = _decimals((config.get("paper") or {}).get("decimals"))
    stages = config.get("stages") or {}
    common = {
        path: wanted
        for path, wanted in ((config.get("paper") or {}).get("when") or {}).items()
        if not path.startswith("stages.") or stages.get(path.split(".")[1]) is not None
    }
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
        interval = _interval(entry.get("interval"), mean, where)
        values.append(
            PaperValue(
                stage=str(entry["stage"]),
                arm=str(entry["arm"]),
                metric=str(entry["metric"]),
                mean=mean,
                std=None if std is None else float(std),
                interval=interval,
                place=str(entry.get("place") or ""),
                when={**common, **(entry.get("when") or {})},
                decimals=decimals,
            )
        )
    return values


def _decimals(value: Any) -> int:
    if value is None:
        return 4
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 9:
        raise ConfigError(
            f"paper.decimals must be a whole number of 0 to 9, got {value!r}: how many decimals the paper prints."
            " Check configs/paper."
        )
    return value


def _interval(value: Any, mean: float, where: str) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not low <= mean <= high:
        raise ConfigError(
            f"{where}: interval must be [low, high] around the mean {mean}, got {value!r}. Check configs/paper."
        )
    return low, high


def applicable_values(configs: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], PaperValue]:
    """The published values that hold for every one of the resolved configs, by (stage, arm, metric).

    Values about stages that the runs do not have are left out.

    Raises:
        ConfigError: Two entries for one number hold at once.
    """
    chosen: dict[tuple[str, str, str], PaperValue] = {}
    for value in read_paper_values(configs[0]):
        if value.stage not in (configs[0].get("stages") or {}):
            continue
        if any(value.unmet(config) for config in configs):
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
    """Why published numbers are not shown: "stages: published for …; here …", one line per unmet condition.

    Of several published values for one number, only the one nearest to this config is explained. Where conditions of the
    whole paper are unmet, those of the single numbers are not told: they would not help.
    """
    shown = applicable_values([config])
    of_all = (config.get("paper") or {}).get("when") or {}
    nearest: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {}
    for value in read_paper_values(config):
        if value.stage not in (config.get("stages") or {}):
            continue
        unmet = value.unmet(config)
        if value.name not in shown and (
            value.name not in nearest or len(unmet) < len(nearest[value.name][1])
        ):
            nearest[value.name] = (value.stage, unmet)
    stages_of: dict[str, list[str]] = {}
    for stage, found in nearest.values():
        unmet = {path: wanted for path, wanted in found.items() if path in of_all} or found
        parts = (
            f"{path} = {_plain(item)} (here {_plain(_lookup(config, path))})" for path, item in unmet.items()
        )
        stages = stages_of.setdefault(" and ".join(parts), [])
        if stage not in stages:
            stages.append(stage)
    return [f"{', '.join(stages)}: published for {reason}" for reason, stages in stages_of.items()]


def _plain(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


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
