"""Figures that look into one system: decisions, failures, the sources of its spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure

from fedsynth.report.drawing import (
    CLASS_NAMES,
    CYCLE,
    GREY,
    Array,
    class_color,
    finish,
    make_panels,
    require,
    styled,
)


@styled
def confusion_matrices(systems: Mapping[str, Array], *, simulated: bool = False) -> Figure:
    """2 × 2 counts of each system: rows truth, columns decision; shaded by the share of the row.

    Args:
        systems: Name → [[TN, FP], [FN, TP]].
        simulated: Write SIMULATED across the figure.
    """
    columns = min(4, len(systems))
    rows = math.ceil(len(systems) / columns)
    figure = Figure(figsize=(2.5 * columns, 2.5 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for axis, (name, counts) in zip(grid.flat, systems.items(), strict=False):
        counts = np.asarray(counts)
        require(counts.shape == (2, 2), name, "[2, 2]", counts)
        axis.set_axis_on()
        share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        axis.imshow(share, cmap="Blues", vmin=0, vmax=1.25)
        for row in range(2):
            for column in range(2):
                text = f"{counts[row, column]:g}\n{share[row, column]:.0%}"
                axis.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    size=9,
                    color="white" if share[row, column] > 0.7 else "black",
                )
        axis.set(xticks=[0, 1], yticks=[0, 1], xticklabels=["neg.", "pos."], yticklabels=["neg.", "pos."])
        axis.set_title("\n".join(wrap(name, 24)), fontsize=8.5)
        axis.set(xlabel="decision", ylabel="truth")
        axis.grid(False)
    return finish(figure, "Confusion matrices on real test records", simulated)


@styled
def score_scatter(
    panels: Mapping[str, Array],
    score: Array,
    label: Array,
    *,
    highlighted: Array | None = None,
    simulated: bool = False,
) -> Figure:
    """The synthetic classifier's score of each test record against a property of the record.

    Args:
        panels: x label → property [n].
        score: [n], in [0, 1].
        label: [n], classes.
        highlighted: [n], bool: circled records.
        simulated: Write SIMULATED across the figure.
    """
    figure, axes = make_panels(len(panels), width=4.2, height=3.2)
    score, label = np.asarray(score, dtype=np.float64), np.asarray(label).astype(int)
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        values = np.asarray(values)
        require(values.shape == score.shape, name, f"[{len(score)}]", values)
        for one, title in enumerate(CLASS_NAMES):
            chosen = label == one
            axis.scatter(
                values[chosen],
                score[chosen],
                s=9,
                alpha=0.55,
                linewidths=0,
                color=class_color(one),
                label=title,
            )
        if highlighted is not None and highlighted.any():
            axis.scatter(
                values[highlighted],
                score[highlighted],
                s=34,
                facecolor="none",
                edgecolor="black",
                linewidths=0.8,
                label="hard negatives",
            )
        axis.set(xlabel=name, ylim=(-0.03, 1.03))
    axes[0].set_ylabel("score, synthetic classifier")
    figure.legend(*axes[0].get_legend_handles_labels(), ncol=3, loc="outside lower center")
    return finish(figure, "Where the classifier of synthetic latents fails", simulated)


@styled
def variance_bars(responses: Mapping[str, Mapping[str, float]], *, simulated: bool = False) -> Figure:
    """Stacked shares of variance per response: component → share in [0, 1]."""
    figure = Figure(figsize=(8.2, 1.5 + 0.5 * max(1, len(responses))), layout="constrained")
    axis = figure.subplots()
    found = dict.fromkeys(name for shares in responses.values() for name in shares)
    names = sorted(found, key=lambda name: (name == "residual", name.count("×")))
    left = np.zeros(len(responses))
    for index, name in enumerate(names):
        share = np.array([shares.get(name, 0.0) for shares in responses.values()])
        share = np.where(np.isfinite(share), share, 0.0)
        main = "×" not in name and name != "residual"
        style: dict[str, Any] = (
            {} if main else {"hatch": "////" if name != "residual" else "....", "alpha": 0.55}
        )
        color = (
            CYCLE[index % len(CYCLE)] if main else (GREY if name == "residual" else CYCLE[index % len(CYCLE)])
        )
        axis.barh(
            range(len(responses)),
            share,
            0.62,
            left=left,
            color=color,
            label=name,
            edgecolor="white",
            linewidth=0.6,
            **style,
        )
        for position, (start, width) in enumerate(zip(left, share, strict=True)):
            if width >= 0.06:
                axis.text(
                    start + width / 2,
                    position,
                    f"{width:.0%}",
                    ha="center",
                    va="center",
                    size=8,
                    color="white" if main else "black",
                )
        left = left + share
    axis.set(
        yticks=range(len(responses)), yticklabels=list(responses), xlabel="share of variance", xlim=(0, 1)
    )
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    figure.legend(*axis.get_legend_handles_labels(), ncol=4, loc="outside lower center")
    return finish(figure, "Where the spread comes from", simulated)
