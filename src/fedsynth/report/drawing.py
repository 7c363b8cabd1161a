"""What the figures share: style, colors, panels, the SIMULATED mark.

Colors are Okabe and Ito's, told apart by readers with color blindness and in print; class 0 (negative) is
blue and class 1 (positive) vermilion everywhere. Drawn with Agg; no global state of matplotlib is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[Any]
P = ParamSpec("P")

CLASS_NAMES = ("negative", "positive")
CLASS_COLORS = ("#0072B2", "#D55E00")
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)), "-", "--")
GREY = "#6b6b6b"
MINUS = "\N{MINUS SIGN}"
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.6,
    "figure.dpi": 160,
    "figure.facecolor": "white",
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under the report's style without touching matplotlib's global settings."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
            return draw(*args, **kwargs)

    return inner


def save_png(figure: Figure, path: Any) -> None:
    """Write a figure as PNG. The bytes hold no date or version, so equal figures are equal files."""
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def make_panels(count: int, *, width: float, height: float, share: bool = False) -> tuple[Figure, list[Axes]]:
    """One row of panels on one figure; at least one."""
    if count < 1:
        raise ValueError("A figure needs at least one panel, got none: leave the figure out instead.")
    figure = Figure(figsize=(width * count, height + 0.4), layout="constrained")
    axes = figure.subplots(1, count, sharex=share, sharey=share, squeeze=False)
    return figure, list(axes[0])


def mean_band(axis: Axes, x: Array, curves: Array, label: str, index: int) -> None:
    """Mean curve of the units, and ± 1 SD (ddof = 1) where there are several."""
    color, mean = CYCLE[index % len(CYCLE)], curves.mean(0)
    axis.plot(x, mean, color=color, linestyle=DASHES[index % len(DASHES)], label=label)
    if len(curves) > 1:
        spread = curves.std(0, ddof=1)
        low, high = np.clip(mean - spread, 0, 1), np.clip(mean + spread, 0, 1)
        axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def finish(figure: Figure, title: str, simulated: bool) -> Figure:
    """Title of the whole figure, and the SIMULATED mark across it."""
    figure.suptitle(f"SIMULATED — {title}" if simulated else title, fontsize=10.5, fontweight="bold")
    if simulated:
        style: dict[str, Any] = {
            "fontsize": 34,
            "color": "#b00000",
            "alpha": 0.16,
            "rotation": 24,
            "zorder": 50,
        }
        figure.text(0.5, 0.5, "SIMULATED", ha="center", va="center", fontweight="bold", **style)
    return figure


def binary(label: Array, probability: Array, name: str = "system") -> tuple[Array, Array]:
    """Labels and probabilities as flat arrays of equal length."""
    label = np.asarray(label).reshape(-1).astype(int)
    probability = np.asarray(probability, dtype=np.float64).reshape(-1)
    require(
        len(label) == len(probability) and len(label) > 0, f"{name}: labels", f"[{len(probability)}]", label
    )
    return label, probability


def require(condition: bool, name: str, expected: str, got: Array) -> None:
    """Refuse an array of another shape than the figure draws."""
    if not condition:
        raise ValueError(f"{name} must be of shape {expected}, got {list(got.shape)}.")


def mean_sd(values: Sequence[float]) -> str:
    """``0.906 ± 0.050`` as text."""
    mean = f"{np.mean(values):.3f}"
    return f"{mean} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else mean


def class_color(label: int) -> str:
    return CLASS_COLORS[label] if label < 2 else CYCLE[label % len(CYCLE)]


def class_name(label: int) -> str:
    return CLASS_NAMES[label] if label < 2 else f"class {label}"
