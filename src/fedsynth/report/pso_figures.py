"""Figures of singling out and of ranks over folds; style as in ``report.drawing``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsynth.report.drawing import CYCLE, GREY, Array, finish, require, styled


@dataclass(frozen=True)
class IsolationLines:
    """Shares of predicates over the radius of their balls, all [radius].

    Attributes:
        radius: In units of the features, ascending.
        isolating: Predicates around released images that exactly one training record satisfies, ``low`` and ``high`` its
            95 % interval.
        baseline: n w (1 − w)^(n−1) at the estimated weights: chance.
        ceiling: The largest chance that the bounds of the weights allow.
        negative: The same with real images of other people in place of released ones.
        positive: The same with the training images themselves: what a leak looks like.
    """

    radius: Array
    isolating: Array
    low: Array
    high: Array
    baseline: Array
    ceiling: Array
    negative: Array
    positive: Array


@styled
def isolation_curves(panels: Mapping[str, IsolationLines], *, simulated: bool = False) -> Figure:
    """Isolating share by radius with its interval, against chance and the two controls.

    Args:
        panels: Title (released set, space) → curves.
        simulated: Write SIMULATED across the figure.

    Raises:
        ValueError: No panel, or curves of unequal lengths.
    """
    if not panels:
        raise ValueError("A figure needs at least one panel, got none: leave the figure out instead.")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.4 if columns == 1 else 8.4, 3.0 * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    axes = list(grid.flat)[: len(panels)]
    for unused in list(grid.flat)[len(panels) :]:
        unused.set_axis_off()
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for name, values in vars(lines).items():
            shape = f"[{len(lines.radius)}]"
            require(np.shape(values) == np.shape(lines.radius), f"{title}: {name}", shape, np.asarray(values))
        x = np.asarray(lines.radius, dtype=np.float64)
        axis.fill_between(x, lines.low, lines.high, color=CYCLE[0], alpha=0.18, linewidth=0)
        axis.plot(
            x,
            lines.isolating,
            color=CYCLE[0],
            marker="o",
            markersize=3.5,
            label="released images, 95 % interval",
        )
        axis.plot(x, lines.baseline, color="black", linestyle=":", label="chance, n·w·(1−w)ⁿ⁻¹")
        axis.plot(x, lines.ceiling, color=GREY, linestyle="--", linewidth=1.2, label="ceiling of chance")
        axis.plot(x, lines.negative, color=CYCLE[2], linestyle="-.", label="real images of other people")
        axis.plot(
            x, lines.positive, color=CYCLE[1], linestyle="-", label="training images themselves (a leak)"
        )
        axis.set(title=title, xlabel="radius of the ball", ylim=(-0.02, 1.02))
        if (x > 0).all():
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    for row in grid:
        row[0].set_ylabel("share of balls with exactly\none training image")
    handles = {
        text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), ncol=3, loc="outside lower center")
    return finish(figure, "Singling out by balls around released images", simulated)


@styled
def rank_diagram(
    mean_rank: Mapping[str, float], cliques: Sequence[Sequence[str]], *, title: str, simulated: bool = False
) -> Figure:
    """A critical-difference diagram: methods on an axis of mean ranks, cliques joined by bars.

    A bar holds for the methods with a dot on it. Where a method that is no member ranks between two members, the bar
    is dotted there: plain bars, as usual libraries draw them, would claim it for the clique.

    Args:
        mean_rank: Method → mean rank, at least 2; rank 1 is best and stands on the left.
        cliques: Groups of methods that are not distinguished, by name.
        title: Of the figure.
        simulated: Write SIMULATED across the figure.

    Raises:
        ValueError: Fewer than 2 methods, or a clique that names another one.
    """
    unknown = sorted({name for clique in cliques for name in clique} - set(mean_rank))
    if len(mean_rank) < 2 or unknown:
        raise ValueError(
            f"A rank diagram needs at least two methods and cliques among them, got {sorted(mean_rank)} and"
            f" unknown {unknown}."
        )
    names = sorted(mean_rank, key=lambda name: mean_rank[name])
    half = (len(names) + 1) // 2
    depth = 0.45 + 0.3 * len(cliques)
    figure = Figure(figsize=(8.4, 1.2 + 0.32 * (half + depth)), layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    worst = len(names)
    axis.plot([1, worst], [0, 0], color="black", linewidth=1.2)
    for tick in range(1, worst + 1):
        axis.plot([tick, tick], [0, 0.18], color="black", linewidth=1.0)
        axis.text(tick, 0.28, str(tick), ha="center", va="bottom", fontsize=8)
    for index, name in enumerate(names):
        is_left = index < half
        row = index if is_left else len(names) - 1 - index
        y, end = -(depth + 0.5 + row), 1 - 0.15 if is_left else worst + 0.15
        axis.plot([mean_rank[name]] * 2 + [end], [0, y, y], color=GREY, linewidth=0.9)
        text = f"{name}  ({mean_rank[name]:.2f})"
        axis.text(
            end,
            y,
            f"{text} " if is_left else f" {text}",
            ha="right" if is_left else "left",
            va="center",
            fontsize=8.5,
        )
    for row, clique in enumerate(cliques):
        _clique(axis, mean_rank, names, set(clique), -(0.35 + 0.3 * row))
    axis.set(xlim=(1 - 0.5 * worst, worst + 0.5 * worst), ylim=(-(depth + half + 0.3), 0.9))
    return finish(figure, title, simulated)


def _clique(
    axis: Axes, mean_rank: Mapping[str, float], names: Sequence[str], clique: set[str], y: float
) -> None:
    rows = [row for row, name in enumerate(names) if name in clique]
    for first, second in pairwise(rows):
        ends = [mean_rank[names[first]], mean_rank[names[second]]]
        style = "-" if second == first + 1 else ":"  # fidelity: rank-diagram-bars
        axis.plot(ends, [y, y], color=CYCLE[1], linewidth=3.2 if style == "-" else 1.6, linestyle=style)
    axis.scatter([mean_rank[names[row]] for row in rows], [y] * len(rows), s=26, color=CYCLE[1], zorder=4)
