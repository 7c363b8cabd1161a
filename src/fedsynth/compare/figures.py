"""Interactive figures as plain plotly dictionaries: what the page draws and W&B stores.

Plain dictionaries, because plotly's classes add a template of seven kilobytes to each figure and take a second to
import. The tests read every figure back with ``plotly.graph_objects.Figure``, which checks each attribute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsynth.report.content import plain_json

#: Okabe and Ito's colors as in the report's figures; the page lightens them in the dark.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7a7a7a")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "triangle-up", "cross", "x", "star")
REFERENCE = "#7a7a7a"


@dataclass(frozen=True)
class Choice:
    """One picture of a figure that shows one of several quantities."""

    label: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        value = plain_json({"label": self.label, "data": self.data, "layout": self.layout})
        assert isinstance(value, dict)
        return value


@dataclass(frozen=True)
class InteractiveFigure:
    """A figure of the page: how to read it, and its pictures; the first is shown, the others can be chosen."""

    name: str
    title: str
    caption: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Point:
    """A summarized number at a place on an axis."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""


def color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def dash(index: int) -> str:
    """Lines of one color are told apart by their dashes."""
    return DASHES[index // len(PALETTE) % len(DASHES)]


def interval_line(points: Sequence[Point], name: str, index: int, *, lines: bool = True) -> dict[str, Any]:
    """Points with 95 % intervals, joined in the order of x."""
    ordered = sorted(points, key=lambda point: point.x)

    def reach(point: Point, end: float | None) -> float:
        return 0.0 if end is None else abs(end - point.y)

    return {
        "type": "scatter",
        "mode": "lines+markers" if lines and len(ordered) > 1 else "markers",
        "name": name,
        "x": [point.x for point in ordered],
        "y": [point.y for point in ordered],
        "text": [point.note for point in ordered],
        "hovertemplate": "<b>%{y:.4f}</b> %{text}<extra>%{fullData.name}</extra>",
        "line": {"color": color(index), "dash": dash(index), "width": 2},
        "marker": {"color": color(index), "size": 8, "symbol": SYMBOLS[index // len(PALETTE) % len(SYMBOLS)]},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [reach(point, point.high) for point in ordered],
            "arrayminus": [reach(point, point.low) for point in ordered],
            "color": color(index),
            "thickness": 1.2,
            "width": 4,
            "visible": any(point.low is not None for point in ordered),
        },
    }


def paper_points(points: Sequence[Point], index: int, name: str) -> dict[str, Any]:
    """Published values: open diamonds in the color of the line they belong to."""
    ordered = sorted(points, key=lambda point: point.x)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [point.x for point in ordered],
        "y": [point.y for point in ordered],
        "text": [point.note for point in ordered],
        "hovertemplate": "<b>%{y:.4f}</b> %{text}<extra>%{fullData.name}</extra>",
        "marker": {
            "symbol": "diamond-open",
            "size": 11,
            "color": color(index),
            "line": {"width": 2, "color": color(index)},
        },
    }


def band_line(
    x: Sequence[float], mean: Sequence[float], std: Sequence[float] | None, name: str, index: int
) -> list[dict[str, Any]]:
    """A mean curve, and ± 1 SD around it where there are several runs. Leaves out what is not finite."""
    kept = [place for place, value in enumerate(mean) if math.isfinite(value)]
    xs = [x[place] for place in kept]
    means = [mean[place] for place in kept]
    traces: list[dict[str, Any]] = []
    if std is not None and len(kept) > 1:
        stds = [std[place] if math.isfinite(std[place]) else 0.0 for place in kept]
        upper = [m + s for m, s in zip(means, stds, strict=True)]
        lower = [m - s for m, s in zip(means, stds, strict=True)]
        red, green, blue = (int(color(index)[place : place + 2], 16) for place in (1, 3, 5))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [*xs, *reversed(xs)],
                "y": [*upper, *reversed(lower)],
                "fill": "toself",
                "fillcolor": f"rgba({red},{green},{blue},0.16)",
                "line": {"width": 0},
                "hoverinfo": "skip",
                "showlegend": False,
                "legendgroup": name,
            }
        )
    traces.append(
        {
            "type": "scatter",
            "mode": "lines" if len(kept) > 1 else "markers",
            "name": name,
            "x": xs,
            "y": means,
            "legendgroup": name,
            "line": {"color": color(index), "dash": dash(index), "width": 2},
            "hovertemplate": "%{y:.4f}<extra>%{fullData.name}</extra>",
        }
    )
    return traces


def reference_line(value: float, name: str, span: tuple[float, float]) -> dict[str, Any]:
    """A horizontal dotted line: a number that does not depend on x."""
    low, high = span if span[0] < span[1] else (span[0] * 0.8, span[1] * 1.25)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [low, high],
        "y": [value, value],
        "line": {"color": REFERENCE, "dash": "dot", "width": 1.8},
        "hovertemplate": "<b>%{y:.4f}</b><extra>%{fullData.name}</extra>",
    }


def layout(x_title: str, y_title: str, **extra: Any) -> dict[str, Any]:
    """What all figures share; colors of text and grid come from the page, which knows light and dark."""
    x_axis = {"title": {"text": x_title}, "zeroline": False, **extra.pop("xaxis", {})}
    y_axis = {"title": {"text": y_title}, "zeroline": False, **extra.pop("yaxis", {})}
    return {"xaxis": x_axis, "yaxis": y_axis, "hovermode": "closest", **extra}
