"""Figures of federated systems: utility against privacy, rounds, clients, leakage; style as in ``report.drawing``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from fedsynth.report.drawing import CYCLE, DASHES, GREY, Array, finish, make_panels, styled
from fedsynth.report.result_figures import Estimate

MARKERS = ("o", "s", "^", "v", "D", "P", "X")
#: PPS of the contours of the plane.
CONTOURS = np.arange(0.05, 1.0, 0.05)


def line_style(index: int) -> dict[str, Any]:
    """Color, dash and marker of the line with this number; the first 49 differ in at least one."""
    turn = index // len(CYCLE)
    return {
        "color": CYCLE[index % len(CYCLE)],
        "linestyle": DASHES[(index + turn) % len(DASHES)],
        "marker": MARKERS[(index + turn) % len(MARKERS)],
    }


@styled
def privacy_plane(
    panels: Mapping[str, Mapping[str, tuple[Estimate, Estimate]]], *, simulated: bool = False
) -> Figure:
    """UAR over the privacy score ρ with contours of their harmonic mean (PPS); upper right is better.

    Args:
        panels: Title (ours, the paper's) → system → (ρ, UAR). A system has one color and marker in all panels.
        simulated: Write SIMULATED across the figure.

    Raises:
        ValueError: No panel.
    """
    names = list(dict.fromkeys(name for systems in panels.values() for name in systems))
    figure, axes = make_panels(len(panels), width=6.2 if len(panels) == 1 else 4.6, height=4.4, share=True)
    points = [pair for systems in panels.values() for pair in systems.values()]
    x_limits, y_limits = (_limits([pair[side] for pair in points]) for side in (0, 1))
    for axis, (title, systems) in zip(axes, panels.items(), strict=True):
        _contours(axis, x_limits, y_limits)
        for name, (rho, uar) in systems.items():
            style = line_style(names.index(name))
            for bounds, at in ((_bounds(rho), 0), (_bounds(uar), 1)):
                if bounds:
                    x, y = (bounds, [uar.mean] * 2) if at == 0 else ([rho.mean] * 2, bounds)
                    axis.plot(x, y, color=style["color"], linewidth=1.0, alpha=0.6)
            # Hollow where colors begin again.
            face = style["color"] if names.index(name) < len(CYCLE) else "white"
            axis.scatter([rho.mean], [uar.mean], s=38, facecolor=face, edgecolor=style["color"],
                         marker=style["marker"], zorder=4, label=name)  # fmt: skip
        axis.set(
            title=title, xlabel="privacy score ρ = 1 − 2 |attack AUROC − 0.5|", xlim=x_limits, ylim=y_limits
        )
    axes[0].set_ylabel("UAR on test")
    handles = {
        text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), ncol=3, loc="outside lower center")
    return finish(figure, "Utility and privacy; grey lines: equal PPS", simulated)


def _contours(axis: Axes, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> None:
    x, y = np.meshgrid(np.linspace(*x_limits, 120), np.linspace(*y_limits, 120))
    pps = 2 * x * y / np.maximum(x + y, 1e-12)
    drawn = axis.contour(x, y, pps, levels=CONTOURS, colors=GREY, linewidths=0.7, linestyles=":")
    axis.clabel(drawn, fmt=lambda value: f"{value:.2f}", fontsize=7)
    axis.grid(False)


def _limits(items: Sequence[Estimate]) -> tuple[float, float]:
    """A range that holds every point and interval within [0, 1], with a margin."""
    values = [value for item in items for value in (item.mean, *(_bounds(item) or ()))]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = max(0.03, 0.08 * (high - low))
    return max(0.0, low - margin), min(1.02, high + margin)


def _bounds(item: Estimate) -> list[float] | None:
    """The interval, cut off at 0 and 1: no share leaves them."""
    if item.low is None or item.high is None:
        return None
    return [min(1.0, max(0.0, value)) for value in (item.low, item.high)]


@styled
def score_by_round(
    panels: Mapping[str, Mapping[str, tuple[Array, Array]]], *, y_label: str, simulated: bool = False
) -> Figure:
    """A validation score by communication round: panel → system → (rounds [r], score [r]).

    Raises:
        ValueError: No panel.
    """
    figure, axes = make_panels(len(panels), width=6.6 if len(panels) == 1 else 4.6, height=4.0, share=True)
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for index, (name, (x, y)) in enumerate(lines.items()):
            style = line_style(index)
            axis.plot(x, y, label=name, markersize=3, markevery=max(1, len(x) // 12), **style)
        axis.set(title=title, xlabel="rounds completed")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2, handlelength=3, fontsize=7.5)
    axes[0].set_ylabel(y_label)
    return finish(figure, f"{y_label} by round", simulated)


@styled
def client_scaling(
    panels: Mapping[str, Mapping[str, Mapping[int, Estimate]]], *, simulated: bool = False
) -> Figure:
    """A metric over the number of clients (logarithmic axis): panel (metric) → system → clients → estimate.

    Raises:
        ValueError: No panel.
    """
    clients = sorted({count for lines in panels.values() for line in lines.values() for count in line})
    figure, axes = make_panels(len(panels), width=5.6 if len(panels) == 1 else 3.6, height=3.1)
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for index, (name, points) in enumerate(lines.items()):
            style = line_style(index)
            # A few percent apart, so that intervals of two systems do not hide each other.
            shift = 1.04 ** (index - (len(lines) - 1) / 2)
            x = [count * shift for count in sorted(points)]
            items = [points[count] for count in sorted(points)]
            axis.plot(x, [item.mean for item in items], markersize=5, label=name, **style)
            for at, item in zip(x, items, strict=True):
                if item.low is not None and item.high is not None:
                    axis.plot([at, at], [item.low, item.high], color=style["color"], linewidth=1.0, alpha=0.7)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(title=title, xlabel="clients", xticks=clients, xticklabels=[str(count) for count in clients])
    figure.legend(*axes[0].get_legend_handles_labels(), ncol=3, loc="outside lower center")
    return finish(figure, "The same records on more clients", simulated)


@styled
def leakage_bars(
    panels: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
    *,
    references: Mapping[str, Mapping[str, float]] | None = None,
    title: str,
    simulated: bool = False,
) -> Figure:
    """Bars with intervals: panel (attack) → system → group (modality) → estimate.

    Args:
        panels: What is drawn; a system without a group leaves a gap.
        references: Panel → group → what guessing reaches: a black line across the bars of the group.
        title: Of the figure.
        simulated: Write SIMULATED across the figure.

    Raises:
        ValueError: No panel.
    """
    figure, axes = make_panels(len(panels), width=5.6 if len(panels) == 1 else 3.5, height=3.2)
    for axis, (name, systems) in zip(axes, panels.items(), strict=True):
        groups = list(dict.fromkeys(group for bars in systems.values() for group in bars))
        width = 0.8 / max(1, len(systems))
        for index, (label, bars) in enumerate(systems.items()):
            at = [groups.index(group) + (index - (len(systems) - 1) / 2) * width for group in bars]
            axis.bar(at, [item.mean for item in bars.values()], width * 0.92, color=CYCLE[index % len(CYCLE)],
                     alpha=0.85, label=label)  # fmt: skip
            for x, item in zip(at, bars.values(), strict=True):
                if item.low is not None and item.high is not None:
                    axis.plot([x, x], [item.low, item.high], color="black", linewidth=1.0)
        for group, value in ((references or {}).get(name) or {}).items():
            if group in groups:
                middle = groups.index(group)
                axis.plot(
                    [middle - 0.45, middle + 0.45], [value] * 2, color="black", linewidth=1.3, linestyle="--"
                )
        axis.set(title=name, xticks=range(len(groups)), xticklabels=groups, ylim=(0, 1.02))
        axis.grid(False, axis="x")
    handles, labels = axes[0].get_legend_handles_labels()
    if references:
        handles.append(Line2D([], [], color="black", linewidth=1.3, linestyle="--"))
        labels.append("guessing")
    figure.legend(handles, labels, ncol=5, loc="outside lower center")
    return finish(figure, title, simulated)
