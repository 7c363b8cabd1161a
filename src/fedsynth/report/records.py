"""Flat records: one line per (stage, arm, metric) with mean, spread, interval, and the published value.

What is repeated decides what the spread means:

=====================================  ==================  ==========================================
runs                                   unit                interval (95 %)
=====================================  ==================  ==========================================
several, of different seeds            run (values of one  Student t over runs
                                       run averaged)
one, several classifier seeds          classifier seed     Student t over classifier seeds
one, one value                         none (std is null)  the stage's own (resampling), if any
=====================================  ==================  ==========================================

Standard deviations are sample SDs (ddof = 1), as in the papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedsynth.report.compatibility import require_comparable
from fedsynth.report.paper import applicable_values
from fedsynth.report.runs import Run

CONFIDENCE = 0.95


@dataclass(frozen=True)
class ReportRecord:
    """One measured number. ``None`` stands for undefined or not applicable, never NaN."""

    stage: str
    arm: str
    metric: str
    mean: float | None
    std: float | None  # ddof = 1 over `seeds` units; None for a single value
    ci_low: float | None
    ci_high: float | None
    seeds: int  # units behind `mean`: runs, or classifier seeds of one run
    paper: float | None  # published mean, where one was published for these settings
    interval: str = ""  # what ci_low and ci_high are
    paper_std: float | None = None
    place: str | None = None  # where in the paper
    paper_low: float | None = None  # the paper's own 95 % interval
    paper_high: float | None = None
    paper_rounding: float = 5e-5  # half a unit of the last digit that the paper prints

    def to_dict(self) -> dict[str, Any]:
        values = {**asdict(self), "paper_outside": self.paper_is_outside}
        del values["paper_rounding"]
        return values

    @property
    def delta(self) -> float | None:
        """Ours minus the paper's, where both exist."""
        return None if self.paper is None or self.mean is None else self.mean - self.paper

    @property
    def paper_is_outside(self) -> bool | None:
        """Whether the published mean lies outside our interval; None without a published value or interval."""
        if self.paper is None or self.ci_low is None or self.ci_high is None:
            return None
        return not self.ci_low - self.paper_rounding <= self.paper <= self.ci_high + self.paper_rounding


@dataclass(frozen=True)
class _Value:
    run: int
    seed: Any
    value: float
    ci_low: float | None
    ci_high: float | None


def collect_records(runs: Sequence[Run], *, allow_mixed: bool = False) -> list[ReportRecord]:
    """Every metric of the runs, summarized; order of first appearance.

    Published values are given only when every run is on real data and meets the value's ``when``.
    With ``allow_mixed``, differences are not refused: whoever passes it answers for the averages.

    Raises:
        ConfigError: The runs are not repetitions of one experiment (see ``require_comparable``), or
            ``config.paper`` is malformed.
    """
    require_comparable(runs, allow_mixed=allow_mixed)
    simulated = any(run.is_simulated for run in runs)
    published = {} if simulated else applicable_values([run.config for run in runs])
    found: dict[tuple[str, str, str], list[_Value]] = {}
    for index, run in enumerate(runs):
        for name, stage in run.stages.items():
            for row in stage.metrics:
                key = (name, str(row.get("arm") or ""), str(row["metric"]))
                value = _Value(
                    run=index,
                    seed=row.get("seed"),
                    value=_number(row.get("value")),
                    ci_low=_finite(row.get("ci_low")),
                    ci_high=_finite(row.get("ci_high")),
                )
                found.setdefault(key, []).append(value)
    records = []
    for key, values in found.items():
        summary = _summarize(values, num_runs=len(runs))
        paper = published.get(key)
        records.append(
            ReportRecord(
                stage=key[0],
                arm=key[1],
                metric=key[2],
                paper=paper.mean if paper else None,
                paper_std=paper.std if paper else None,
                place=paper.place if paper else None,
                paper_low=paper.interval[0] if paper and paper.interval else None,
                paper_high=paper.interval[1] if paper and paper.interval else None,
                paper_rounding=paper.rounding if paper else 5e-5,
                **summary,
            )
        )
    return records


# fidelity: report-unit
def student_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Two-sided Student-t interval of the mean: m ± t_{n-1} · s / √n, s with ddof = 1. Needs n ≥ 2."""
    if len(values) < 2:
        raise ValueError(f"A t interval needs at least two values, got {len(values)}.")
    array = np.asarray(values, dtype=np.float64)
    half = stats.t.ppf(0.5 + confidence / 2, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array))
    return float(array.mean() - half), float(array.mean() + half)


def _summarize(values: list[_Value], num_runs: int) -> dict[str, Any]:
    defined = [value for value in values if math.isfinite(value.value)]
    undefined = len(values) - len(defined)
    note = f"; {undefined} undefined of {len(values)} left out" if undefined else ""
    by_run: dict[int, list[float]] = {}
    for value in defined:
        by_run.setdefault(value.run, []).append(value.value)
    if num_runs > 1 and len(by_run) > 1:
        units = [float(np.mean(items)) for items in by_run.values()]
        unit = "runs"
    else:
        units = [value.value for value in defined]
        unit = "classifier seeds of one run"
    if len(units) > 1:
        low, high = student_interval(units)
        return {
            "mean": float(np.mean(units)),
            "std": float(np.std(units, ddof=1)),
            "ci_low": low,
            "ci_high": high,
            "seeds": len(units),
            "interval": f"95 % Student t over {len(units)} {unit}{note}",
        }
    only = defined[0] if defined else None
    has_interval = only is not None and only.ci_low is not None and only.ci_high is not None
    return {
        "mean": only.value if only else None,
        "std": None,
        "ci_low": only.ci_low if only and has_interval else None,
        "ci_high": only.ci_high if only and has_interval else None,
        "seeds": len(units),
        "interval": ("95 % by the stage (resampling), one value" if has_interval else "none: one value")
        + note,
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None
