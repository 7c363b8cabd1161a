"""Figures that set systems, budgets and attacks beside each other; style as in ``fedsynth.report.figures``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsynth.report.drawing import (
    CYCLE,
    DASHES,
    GREY,
    finish,
    make_panels,
    styled,
)

PAPER_COLOR = "#000000"


@dataclass(frozen=True)
class Estimate:
    """One number with its 95 % interval, the values behind it and the published one; None: not there."""

    mean: float
    low: float | None = None
    high: float | None = None
    values: tuple[float, ...] = ()
    paper: float | None = None
    paper_low: float | None = None
    paper_high: float | None = None


@styled
def forest(
    rows: Mapping[str, Estimate],
    *,
    title: str,
    x_label: str,
    reference: float | None = None,
    limits: tuple[float | None, float | None] = (None, None),
    simulated: bool = False,
) -> Figure:
    """One line per system: mean and interval (blue), single runs (grey dots), the paper (black diamond).

    Args:
        rows: Label → estimate, drawn from top to bottom.
        title: Of the figure.
        x_label: What is measured.
        reference: Where to draw a dotted vertical line, such as no difference.
        limits: The interval is cut off there, as AUROC cannot exceed 1.
        simulated: Write SIMULATED across the figure.
    """
    figure = Figure(figsize=(7.2, 1.3 + 0.36 * max(1, len(rows))), layout="constrained")
    axis = figure.subplots()
    if reference is not None:
        axis.axvline(reference, color=GREY, linewidth=0.9, linestyle=":")
    for position, item in enumerate(rows.values()):
        if item.low is not None and item.high is not None:
            low, high = (
                np.clip([item.low, item.high], *limits)
                if any(v is not None for v in limits)
                else (item.low, item.high)
            )
            axis.plot(
                [low, high], [position, position], color=CYCLE[0], linewidth=2.2, solid_capstyle="round"
            )
        if len(item.values) > 1:
            axis.scatter(
                item.values, [position + 0.17] * len(item.values), s=9, color=GREY, alpha=0.8, linewidths=0
            )
        axis.scatter([item.mean], [position], s=34, color=CYCLE[0], zorder=4)
        if item.paper is not None:
            if item.paper_low is not None and item.paper_high is not None:
                bounds = [item.paper_low, item.paper_high]
                axis.plot(bounds, [position - 0.2] * 2, color=PAPER_COLOR, linewidth=1.0)
            axis.scatter([item.paper], [position - 0.2], s=24, marker="D", color=PAPER_COLOR, zorder=3)
    axis.set(yticks=range(len(rows)), yticklabels=list(rows), xlabel=x_label, ylim=(len(rows) - 0.4, -0.6))
    axis.grid(False, axis="y")
    axis.scatter([], [], s=34, color=CYCLE[0], label="ours, 95 % interval")
    if any(len(item.values) > 1 for item in rows.values()):
        axis.scatter([], [], s=9, color=GREY, label="single runs")
    if any(item.paper is not None for item in rows.values()):
        axis.scatter([], [], s=24, marker="D", color=PAPER_COLOR, label="paper")
    figure.legend(*axis.get_legend_handles_labels(), ncol=3, loc="outside lower center")
    return finish(figure, title, simulated)


@styled
def budget_curves(
    panels: Mapping[str, Mapping[str, Mapping[float, Estimate]]],
    *,
    references: Mapping[str, Mapping[str, float]] | None = None,
    title: str,
    simulated: bool = False,
) -> Figure:
    """A number against ε: panel (what is measured) → line → ε → estimate. ε = ∞ is the last tick.

    Args:
        panels: The x axis has one tick per ε, evenly spaced: budgets are compared, no function is fitted.
        references: Panel → label → value: a dotted horizontal line (a ceiling, chance).
        title: Of the figure.
        simulated: Write SIMULATED across the figure.
    """
    budgets = sorted({epsilon for lines in panels.values() for line in lines.values() for epsilon in line})
    place = {epsilon: index for index, epsilon in enumerate(budgets)}
    figure, axes = make_panels(len(panels), width={1: 6.0, 2: 4.2}.get(len(panels), 3.0), height=3.0)
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        for number, (label, value) in enumerate(((references or {}).get(name) or {}).items()):
            axis.axhline(value, color=GREY, linewidth=1.1, linestyle=(":", "--")[number % 2], label=label)
        for index, (label, points) in enumerate(lines.items()):
            _budget_line(axis, points, place, label, index, len(lines))
        if any(item.paper is not None for points in lines.values() for item in points.values()):
            axis.scatter(
                [], [], s=26, marker="D", facecolor="none", edgecolor=GREY, label="paper (same color)"
            )
        labels = ["∞" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in budgets]
        axis.set(title=name, xlabel="privacy budget ε", xticks=range(len(budgets)), xticklabels=labels)
        axis.set_xlim(-0.4, len(budgets) - 0.6)
    handles = {
        text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    columns = 2 if len(panels) == 1 else 4
    figure.legend(handles.values(), handles.keys(), ncol=columns, loc="outside lower center")
    return finish(figure, title, simulated)


def _budget_line(
    axis: Axes,
    points: Mapping[float, Estimate],
    place: Mapping[float, int],
    label: str,
    index: int,
    count: int,
) -> None:
    shift = 0.1 * (index - (count - 1) / 2)
    x = [place[epsilon] + shift for epsilon in sorted(points)]
    items = [points[epsilon] for epsilon in sorted(points)]
    color = CYCLE[index % len(CYCLE)]
    style: dict[str, Any] = {"color": color, "linestyle": DASHES[index % len(DASHES)]}
    axis.plot(x, [item.mean for item in items], marker="o", markersize=4, label=label, **style)
    for at, item in zip(x, items, strict=True):
        if item.low is not None and item.high is not None:
            axis.plot([at, at], [item.low, item.high], color=color, linewidth=1.0, alpha=0.7)
        if item.paper is not None:
            axis.scatter([at], [item.paper], s=26, marker="D", facecolor="none", edgecolor=color, zorder=4)


@styled
def inverse_noise_law(
    points: Mapping[str, Sequence[tuple[float, Estimate]]],
    slopes: Mapping[str, float],
    *,
    y_label: str,
    simulated: bool = False,
) -> Figure:
    """A number that should be proportional to 1/σ: points per source, and the line a/σ through them.

    Args:
        points: Source → (σ / Δ, estimate); the x axis is Δ / σ.
        slopes: Source → a of the line; a source without one gets none.
        y_label: What should be proportional to 1/σ.
        simulated: Write SIMULATED across the figure.
    """
    figure, (axis,) = make_panels(1, width=5.8, height=3.4)
    axis.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    right = max((1 / sigma for line in points.values() for sigma, _ in line), default=1.0) * 1.08
    for index, (name, line) in enumerate(points.items()):
        color, marker = (PAPER_COLOR, "D") if name == "paper" else (CYCLE[index % len(CYCLE)], "o")
        for sigma, item in line:
            if item.low is not None and item.high is not None:
                axis.plot([1 / sigma] * 2, [item.low, item.high], color=color, linewidth=1.0, alpha=0.7)
        x, y = [1 / sigma for sigma, _ in line], [item.mean for _, item in line]
        axis.scatter(x, y, s=28, marker=marker, color=color, zorder=3, label=name)
        if name in slopes:
            axis.plot([0, right], [0, slopes[name] * right], color=color, linewidth=1.1, linestyle="--")
    axis.set(
        xlabel="Δ / σ (1 over the noise in units of the sensitivity; larger ε to the right)", ylabel=y_label
    )
    axis.set_xlim(0, right)
    axis.legend(loc="best")
    return finish(figure, "Membership attack against the noise", simulated)
