"""One picture of a sweep: metrics of all groups along the one setting in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsynth.compare.factors import SweepAxis
from fedsynth.compare.figures import Choice, InteractiveFigure, Point, interval_line, layout
from fedsynth.compare.groups import Grouping
from fedsynth.compare.results import ResultRow, Results
from fedsynth.report import glossary
from fedsynth.report.drawing import CYCLE, DASHES, finish, styled

#: What the static picture shows, as far as it was measured: (metric, title of the panel).
PANELS = (
    ("test/auroc", "AUROC on real test records"),
    ("coverage", "Coverage of real latents"),
    ("attack_auroc", "Attack AUROC"),
)
MAX_LINES = 7


def sweep_figure(grouping: Grouping, results: Results) -> InteractiveFigure | None:
    """One picture per headline metric over the sweep's axis; None when the groups are no sweep."""
    axis = grouping.axis
    if axis is None or len(grouping.groups) < 2:
        return None
    choices = []
    for metric in dict.fromkeys(row.metric for row in results.headline):
        rows = _drawable(row for row in results.headline if row.metric == metric)
        if not rows:
            continue
        data = [interval_line(_points(row, grouping), row.title, index) for index, row in enumerate(rows)]
        title = glossary.metric_title(metric)
        choices.append(Choice(title, data, layout(axis.title, title, xaxis=_x_axis(axis))))
    if not choices:
        return None
    return InteractiveFigure(
        "sweep",
        f"Sweep over {axis.title}",
        f"Every number over {axis.title}{_together(grouping)}. Bars: 95 % interval over runs (one run: over its"
        " classifier seeds or its resampling)." + _caution(grouping),
        tuple(choices),
    )


def sweep_picture(grouping: Grouping, results: Results) -> Figure | None:
    """The static picture: AUROC, coverage and attack side by side. None when there is no sweep or no number."""
    axis = grouping.axis
    if axis is None or len(grouping.groups) < 2:
        return None
    panels = []
    for metric, title in PANELS:
        rows = _drawable(row for row in results.headline if row.metric == metric)
        if rows:
            panels.append((title, rows[:MAX_LINES], rows[MAX_LINES:]))
    if not panels:
        return None
    return _draw_panels(grouping, axis, panels)


@styled
def _draw_panels(
    grouping: Grouping, axis: SweepAxis, panels: Sequence[tuple[str, list[ResultRow], list[ResultRow]]]
) -> Figure:
    figure = Figure(figsize=(4.3 * len(panels), 4.4), layout="constrained")
    for place, (title, rows, left_out) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for index, row in enumerate(rows):
            _draw_line(axes, _points(row, grouping), row.title, index)
        _style_axis(axes, axis, title)
        if left_out:
            axes.annotate(
                f"{len(left_out)} more on the page",
                (0.99, 0.01),
                xycoords="axes fraction",
                ha="right",
                fontsize=7,
            )
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=1)
    return finish(figure, f"{_experiments(grouping)}: sweep over {axis.title}", grouping.is_simulated)


def _draw_line(axes: Axes, points: Sequence[Point], name: str, index: int) -> None:
    ordered = sorted(points, key=lambda point: point.x)
    y = np.array([point.y for point in ordered])
    low = np.array([point.y if point.low is None else point.low for point in ordered])
    high = np.array([point.y if point.high is None else point.high for point in ordered])
    axes.errorbar(
        [point.x for point in ordered],
        y,
        yerr=np.abs(np.stack([y - low, high - y])),
        label=name,
        color=CYCLE[index % len(CYCLE)],
        linestyle=DASHES[index % len(DASHES)],
        marker="o",
        markersize=4,
        capsize=2.5,
        elinewidth=0.9,
    )


def _style_axis(axes: Axes, axis: SweepAxis, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(axis.title)
    if axis.is_logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(axis.positions, axis.labels)
    axes.minorticks_off()


def _drawable(rows: Any) -> list[ResultRow]:
    """Rows that at least two groups have; not those of the public pretraining, whose labels are others."""
    rows = [row for row in rows if row.stage not in glossary.MANY_LABEL_STAGES]
    drawable = [
        row for row in rows if sum(cell is not None and cell.mean is not None for cell in row.cells) > 1
    ]
    return sorted(drawable, key=lambda row: row.is_variant)  # stable: other budgets come last


def _points(row: ResultRow, grouping: Grouping) -> list[Point]:
    assert grouping.axis is not None
    points = []
    for x, group, cell in zip(grouping.axis.positions, grouping.groups, row.cells, strict=True):
        if cell is not None and cell.mean is not None:
            points.append(
                Point(x, cell.mean, cell.ci_low, cell.ci_high, f"{group.name} ({len(group.runs)} runs)")
            )
    return points


def _x_axis(axis: SweepAxis) -> dict[str, Any]:
    ticks = {"tickvals": list(axis.positions), "ticktext": list(axis.labels)}
    return {"type": "log", **ticks} if axis.is_logarithmic else ticks


def _together(grouping: Grouping) -> str:
    companions = [key for factor in grouping.factors if not factor.is_stage for key in factor.companions]
    if companions:
        return f"; with it change {', '.join(companions)}"
    return ", the only setting in which the groups differ"


def _caution(grouping: Grouping) -> str:
    marks = [mark for group in grouping.groups for mark in group.marks if mark.startswith("different")]
    return f" Caution, some groups stand on {marks[0].partition(' than')[0]}." if marks else ""


def _experiments(grouping: Grouping) -> str:
    return ", ".join(dict.fromkeys(group.experiment for group in grouping.groups))
