"""Utility and disclosure over ε: every number whose ε can be found by walking back to what was released."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from fedsynth.compare.factors import shown
from fedsynth.compare.figures import (
    Choice,
    InteractiveFigure,
    Point,
    interval_line,
    layout,
    paper_points,
    reference_line,
)
from fedsynth.compare.groups import Group, Grouping
from fedsynth.compare.results import ResultRow, Results
from fedsynth.report import glossary
from fedsynth.report.records import ReportRecord
from fedsynth.report.runs import Run

CLASSIFIER = "tstr_mlp"
AUDIT = "audit"
ENCODER = "fusion_encoder"
#: Inputs that carry what was trained on. The others of a TSTR classifier are the real records of its test.
TRAINING_ROLES = {CLASSIFIER: ("train",), AUDIT: ("release", "mixture", "synthetic")}
_BUDGET_IN_NAME = re.compile(r"_(eps_?[\d.p]+|nonprivate)(?=_|$)")


def stage_epsilon(run: Run, name: str) -> float | None:
    """The ε of what a stage was made from: the sum over the private releases it descends from.

    Counted (basic sequential composition, an upper bound): the ``epsilon`` of every stage of kind ``release`` on
    the way, and every finite ε another stage wrote into its ledger (a federated encoder under DP-SGD). A test set
    is not followed. What is declared *uncovered* has no ε and is not in the sum.

    Returns:
        ε, ``inf`` for a release without privacy, None when nothing on the way was released (real latents).
    """
    found: dict[str, float] = {}
    _collect(run, name, found, set())
    return sum(found.values()) if found else None


def privacy_utility_figure(grouping: Grouping, results: Results) -> InteractiveFigure | None:
    """One picture per headline metric with ε on the x-axis; None when nothing has an ε."""
    choices = []
    for metric in dict.fromkeys(row.metric for row in results.headline):
        choice = _choice(grouping, [row for row in results.headline if row.metric == metric], metric)
        if choice is not None:
            choices.append(choice)
    if not choices:
        return None
    return InteractiveFigure(
        "privacy_utility",
        "Privacy and utility over ε",
        "Each number at the ε of the release it was made from (found by following the stages' inputs). Bars: 95 %"
        " interval. Open diamonds: the paper. ∞: without privacy. ε covers the release only; what it leaves open is"
        " listed below.",
        tuple(choices),
    )


def series_name(stage: str, arm: str) -> str:
    """The name of a line over ε: stage and arm without what only says the budget or that there is none."""
    stage_base = _BUDGET_IN_NAME.sub("", stage).replace("_nonprivate", "")
    arm_base = _BUDGET_IN_NAME.sub("", arm)
    for prefix in ("dp_", "nonprivate_"):
        arm_base = arm_base.removeprefix(prefix)
    if stage_base.startswith("tstr_"):
        # The arms of one chain have names of their own (dp_mixture, nonprivate_mixture); the stage tells enough.
        return f"TSTR: {stage_base.removeprefix('tstr_').replace('_', ' ')}"
    arm_base = re.sub(r"^membership_(private|nonprivate)", "membership", arm_base)
    return glossary.row_title(stage_base, arm_base).replace("membership", "membership attack")


def _choice(grouping: Grouping, rows: Sequence[ResultRow], metric: str) -> Choice | None:
    lines: dict[str, dict[float, tuple[Group, ReportRecord]]] = {}
    references: dict[str, tuple[Group, ReportRecord]] = {}
    for row in rows:
        for index, record in enumerate(row.cells):
            if record is None or record.mean is None:
                continue
            group = grouping.groups[index]
            epsilon = _epsilon_of(group, row)
            is_encoder = _kind(group, row.stage) == ENCODER
            name = series_name(row.stage, row.arm) + _variant(grouping, index, is_encoder=is_encoder)
            if epsilon is None:
                known = references.get(name)
                if _kind(group, row.stage) == CLASSIFIER and (known is None or _is_broader(group, known[0])):
                    references[name] = (group, record)
                continue
            held = lines.setdefault(name, {}).get(epsilon)
            # One artifact may be in several groups: the one with more runs behind it is shown.
            if held is None or _is_broader(group, held[0]):
                lines[name][epsilon] = (group, record)
    # Without privacy everywhere there is nothing to see over ε: an encoder that nobody protected.
    lines = {
        name: points for name, points in lines.items() if any(map(math.isfinite, points)) or "TSTR" in name
    }
    if not any(math.isfinite(epsilon) for points in lines.values() for epsilon in points):
        return None
    return _draw(lines, references, metric)


def _draw(
    lines: dict[str, dict[float, tuple[Group, ReportRecord]]],
    references: dict[str, tuple[Group, ReportRecord]],
    metric: str,
) -> Choice:
    finite = sorted({e for points in lines.values() for e in points if math.isfinite(e) and e > 0})
    place = _places(finite)
    data: list[dict[str, Any]] = []
    for index, (name, points) in enumerate(lines.items()):
        data.append(interval_line([_point(place(e), e, g, r) for e, (g, r) in points.items()], name, index))
        published = [
            Point(place(e), r.paper, note=f"paper ({r.place or 'published'}), ε = {shown(e)}")
            for e, (_, r) in points.items()
            if r.paper is not None
        ]
        if published:
            data.append(paper_points(published, index, f"{name}, paper"))
    ends = [place(math.inf)] if any(math.isinf(e) for points in lines.values() for e in points) else []
    ticks = [*finite, *([math.inf] if ends else [])]
    span = (place(ticks[0]), place(ticks[-1]))
    for name, (_, record) in references.items():
        assert record.mean is not None
        data.append(reference_line(record.mean, f"{name} (no release)", span))
    return Choice(
        glossary.metric_title(metric),
        data,
        layout(
            "ε of the release (δ as in the ledger)",
            glossary.metric_title(metric),
            xaxis={
                "type": "log",
                "tickvals": [place(tick) for tick in ticks],
                "ticktext": [shown(tick) for tick in ticks],
            },
        ),
    )


def _places(finite: Sequence[float]) -> Any:
    """Where an ε stands on the axis: itself; ∞ a good step right of the largest."""
    largest = max(finite, default=1.0)
    return lambda epsilon: epsilon if math.isfinite(epsilon) else 3 * largest


def _point(x: float, epsilon: float, group: Group, record: ReportRecord) -> Point:
    assert record.mean is not None
    interval = ""
    if record.ci_low is not None and record.ci_high is not None:
        interval = f" [{record.ci_low:.4f}, {record.ci_high:.4f}]"
    return Point(
        x, record.mean, record.ci_low, record.ci_high, f"{interval} at ε = {shown(epsilon)}, {group.name}"
    )


def _epsilon_of(group: Group, row: ResultRow) -> float | None:
    run = next(run for run in group.runs if row.stage in run.stages)
    kind = run.stages[row.stage].kind
    if kind == AUDIT:
        if row.arm.startswith("real_"):
            return None
        return math.inf if "nonprivate" in row.arm else stage_epsilon(run, row.stage)
    if kind == ENCODER:
        return _own_epsilon(run, row.stage)
    return stage_epsilon(run, row.stage) if kind == CLASSIFIER else None


def _is_broader(group: Group, other: Group) -> bool:
    return len(group.runs) > len(other.runs)


def _kind(group: Group, stage: str) -> str:
    return next(run.stages[stage].kind for run in group.runs if stage in run.stages)


def _variant(grouping: Grouping, index: int, *, is_encoder: bool) -> str:
    """What besides the line's own ε tells this group's line from another's.

    The ε of an encoder under DP-SGD is the x of the encoder's lines, but tells lines of releases apart: they would
    otherwise join points that are protected to different extents.
    """
    told = [
        factor
        for factor in grouping.factors
        if not factor.is_stage
        and not (factor.key.endswith("epsilon") and ("encoder" in factor.key) == is_encoder)
    ]
    words = [f"{factor.name} = {shown(factor.values[index])}" for factor in told[:2]]
    group = grouping.groups[index]
    if len(told) > 2 or any(mark.startswith("different") for mark in group.marks):
        words.append(f"group {group.tag}")
    return f" ({', '.join(words)})" if words else ""


def _collect(run: Run, name: str, found: dict[str, float], seen: set[str]) -> None:
    if name in seen:
        return
    seen.add(name)
    stage = run.stages.get(name)
    asked = (run.config.get("stages") or {}).get(name) or {}
    kind = stage.kind if stage else str(asked.get("stage") or name)
    if kind == "release":
        settings = (stage.manifest or {}).get("settings") if stage else None
        epsilon = _number({**asked, **(settings or {})}.get("epsilon"))
        if epsilon is not None:
            found[name] = epsilon
    else:
        epsilon = _own_epsilon(run, name)
        if epsilon is not None and math.isfinite(epsilon):
            found[name] = epsilon
    for role, supplier in (asked.get("inputs") or {}).items():
        if kind not in TRAINING_ROLES or role in TRAINING_ROLES[kind]:
            _collect(run, str(supplier), found, seen)


def _own_epsilon(run: Run, name: str) -> float | None:
    """The sum of the finite ε in a stage's ledger; ``inf`` if it holds only releases without privacy."""
    stage = run.stages.get(name)
    values = [
        _number(entry.get("epsilon"))
        for entry in ((stage.manifest if stage else None) or {}).get("ledger") or []
    ]
    stated = [value for value in values if value is not None]
    finite = [value for value in stated if math.isfinite(value)]
    return sum(finite) if finite else (math.inf if stated else None)


def _number(value: Any) -> float | None:
    try:
        # Artifact keys spell infinity "float:inf"; configs and ledgers spell it "inf".
        return float(value.removeprefix("float:") if isinstance(value, str) else value)
    except (TypeError, ValueError):
        return None
