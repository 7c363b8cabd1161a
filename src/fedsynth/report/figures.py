"""The report's figures: each takes plain arrays and returns a matplotlib Figure.

Style and colors are those of ``fedsynth.report.drawing``. ``simulated`` writes SIMULATED across it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_curve

from fedsynth.report.drawing import (
    CLASS_NAMES,
    CYCLE,
    DASHES,
    GREY,
    MINUS,
    Array,
    binary,
    class_color,
    class_name,
    finish,
    make_panels,
    mean_band,
    mean_sd,
    require,
    styled,
)

#: One independent repetition: its classifier seeds, each (label [n] in {0, 1}, probability [n]).
Unit = Sequence[tuple[Array, Array]]


@styled
def partition_bars(counts: Mapping[str, Array], *, clients: Sequence[str], simulated: bool = False) -> Figure:
    """Stacked bars of records per client and class, one panel per modality.

    Args:
        counts: Modality → integers [client, class].
        clients: Labels of the clients.
        simulated: Write SIMULATED across the figure.
    """
    figure, axes = make_panels(len(counts), width=3.6, height=2.9)
    positions = np.arange(len(clients))
    for axis, (name, values) in zip(axes, counts.items(), strict=True):
        values = np.asarray(values)
        require(
            values.ndim == 2 and len(values) == len(clients), f"counts[{name!r}]", "[client, class]", values
        )
        base = np.zeros(len(clients))
        for label in range(values.shape[1]):
            axis.bar(
                positions,
                values[:, label],
                0.72,
                bottom=base,
                color=class_color(label),
                label=class_name(label),
            )
            base = base + values[:, label]
        for position, total in zip(positions, base, strict=True):
            axis.annotate(
                f"{int(total):,}",
                (position, total),
                (0, 2),
                textcoords="offset points",
                ha="center",
                size=7.5,
            )
        axis.set(title=name, xlabel="client", xticks=positions, xticklabels=clients, ylabel="records")
        axis.set_ylim(0, max(1.0, base.max() * 1.12))
        axis.grid(False, axis="x")
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, ncol=4, loc="outside lower center")
    return finish(figure, "Records per client and class", simulated)


@styled
def learning_curves(
    panels: Mapping[str, Mapping[str, tuple[Array, Array]]],
    *,
    title: str,
    x_label: str,
    simulated: bool = False,
) -> Figure:
    """Curves over rounds or epochs: panel title → line name → (x, y). NaN leaves a gap."""
    figure, axes = make_panels(len(panels), width=3.5, height=2.8)
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        for index, (line, (x, y)) in enumerate(lines.items()):
            style: dict[str, Any] = {
                "color": CYCLE[index % len(CYCLE)],
                "linestyle": DASHES[index % len(DASHES)],
            }
            marker = "o" if len(x) <= 30 else None
            axis.plot(x, y, label=line, marker=marker, markersize=3, **style)
        axis.set(title=name, xlabel=x_label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if lines:
            axis.legend(loc="best", handlelength=2.6)
    return finish(figure, title, simulated)


@styled
def roc_curves(systems: Mapping[str, Sequence[Unit]], *, simulated: bool = False) -> Figure:
    """ROC of each system: mean over its units, band = ± 1 SD (ddof = 1) of the true positive rate.

    Args:
        systems: Name → units; a unit of several classifier seeds enters with its mean curve.
        simulated: Write SIMULATED across the figure.
    """
    figure, (axis,) = make_panels(1, width=4.6, height=4.3)
    grid = np.linspace(0, 1, 401)
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":", label="chance")
    for index, (name, units) in enumerate(systems.items()):
        curves = np.array([np.mean([_roc(*seed, grid)[0] for seed in unit], axis=0) for unit in units])
        areas = [float(np.mean([_roc(*seed, grid)[1] for seed in unit])) for unit in units]
        mean_band(axis, grid, curves, f"{name} (AUROC {mean_sd(areas)})", index)
    axis.set(xlabel=f"1 {MINUS} specificity (false positive rate)", ylabel="sensitivity (true positive rate)")
    axis.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axis.legend(loc="lower right")
    return finish(figure, "ROC on real test records", simulated)


@styled
def pr_curves(systems: Mapping[str, Sequence[Unit]], *, simulated: bool = False) -> Figure:
    """Precision over recall of each system; as ``roc_curves``. The dotted line is the prevalence."""
    figure, (axis,) = make_panels(1, width=4.6, height=4.3)
    grid = np.linspace(0, 1, 401)
    prevalence, lowest = 0.0, 1.0
    for index, (name, units) in enumerate(systems.items()):
        curves = np.array([np.mean([_pr(*seed, grid)[0] for seed in unit], axis=0) for unit in units])
        areas = [float(np.mean([_pr(*seed, grid)[1] for seed in unit])) for unit in units]
        mean_band(axis, grid, curves, f"{name} (AUPRC {mean_sd(areas)})", index)
        prevalence = float(np.mean(units[0][0][0]))
        lowest = min(lowest, float(curves.min()))
    axis.axhline(prevalence, color=GREY, linewidth=0.8, linestyle=":", label=f"prevalence {prevalence:.3f}")
    axis.set(xlabel="recall (sensitivity)", ylabel="precision", xlim=(-0.01, 1.01))
    axis.set_ylim(max(0.0, min(lowest, prevalence) - 0.06), 1.01)
    axis.legend(loc="lower left")
    return finish(figure, "Precision and recall on real test records", simulated)


@styled
def latent_pca(
    sources: Mapping[str, tuple[Array, Array]], *, max_points: int = 1200, simulated: bool = False
) -> Figure:
    """Latents of each source on the first two principal axes of the FIRST source, on common axes.

    Args:
        sources: Name → (latent [n, d], label [n]); the first defines the axes.
        max_points: Points drawn per panel, evenly spaced through the array; the axes use all.
        simulated: Write SIMULATED across the figure.
    """
    reference = np.asarray(next(iter(sources.values()))[0], dtype=np.float64)
    center = reference.mean(0)
    _, singular, axes_pca = np.linalg.svd(reference - center, full_matrices=False)
    share = singular[:2] ** 2 / max(float((singular**2).sum()), 1e-30)
    figure, axes = make_panels(len(sources), width=3.1, height=3.1, share=True)
    shown = []
    for axis, (name, (latent, label)) in zip(axes, sources.items(), strict=True):
        keep = np.unique(np.linspace(0, len(latent) - 1, min(max_points, len(latent))).astype(int))
        points = (np.asarray(latent, dtype=np.float64)[keep] - center) @ axes_pca[:2].T
        label = np.asarray(label).reshape(-1).astype(int)[keep]
        shown.append(points)
        order = np.argsort(
            np.arange(len(keep)) * 7919 % 104729
        )  # mixes the classes, so neither hides the other
        x, y = points[order].T
        axis.scatter(x, y, s=7, c=[class_color(c) for c in label[order]], alpha=0.45, linewidths=0)
        axis.set(title=f"{name} (n = {len(latent):,})", xlabel=f"PC 1 ({share[0]:.0%} of variance)")
    axes[0].set_ylabel(f"PC 2 ({share[1]:.0%} of variance)")
    low, high = np.concatenate(shown).min(0), np.concatenate(shown).max(0)
    pad = 0.05 * np.maximum(high - low, 1e-9)
    axes[0].set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
    for index, name in enumerate(CLASS_NAMES):
        axes[0].scatter([], [], s=24, color=class_color(index), label=name)
    figure.legend(*axes[0].get_legend_handles_labels(), ncol=2, loc="outside lower center")
    return finish(figure, "Latents on the principal axes of the real ones", simulated)


@styled
def distance_histogram(train: Array, held_out: Array, *, simulated: bool = False) -> Figure:
    """Distance of every synthetic latent to its nearest real neighbor: training against held-out records.

    Args:
        train: Distances [n] to the nearest training latent.
        held_out: Distances [n] to the nearest held-out latent.
        simulated: Write SIMULATED across the figure.
    """
    train, held_out = np.asarray(train, dtype=np.float64), np.asarray(held_out, dtype=np.float64)
    figure, (axis,) = make_panels(1, width=5.4, height=3.2)
    edges = np.histogram_bin_edges(np.concatenate([train, held_out]), bins=50).tolist()
    for values, name, color, dash in (
        (train, "nearest training record", CYCLE[0], "-"),
        (held_out, "nearest held-out record", CYCLE[1], "--"),
    ):
        axis.hist(values, edges, density=True, color=color, alpha=0.18)
        axis.hist(values, edges, density=True, color=color, histtype="step", linestyle=dash, linewidth=1.4)
        median = float(np.median(values))
        axis.axvline(median, color=color, linestyle=dash, linewidth=1.1)
        axis.plot([], [], color=color, linestyle=dash, label=f"{name}: median {median:.3f}")
    axis.set(xlabel="Euclidean distance in latent space", ylabel="density")
    ratio = train.mean() / max(held_out.mean(), 1e-30)
    axis.legend(loc="best", title=f"ratio of means (training / held-out): {ratio:.4f}", title_fontsize=8)
    return finish(figure, "How close synthetic records come to real ones", simulated)


@styled
def reliability_diagram(
    systems: Mapping[str, tuple[Array, Array]],
    *,
    num_bins: int = 15,
    title: str = "Calibration on real test records",
    unit: str = "records",
    simulated: bool = False,
) -> Figure:
    """Observed share of positives in equal-width bins of the predicted probability; how full the bins are.

    Args:
        systems: Name → (label [n], probability [n]).
        num_bins: Equal-width bins on [0, 1].
        title: Of the figure.
        unit: What is counted in the lower row.
        simulated: Write SIMULATED across the figure.
    """
    columns = len(systems)
    figure = Figure(figsize=(0.4 + 2.7 * columns, 3.9), layout="constrained")
    grid = figure.subplots(2, columns, sharex=True, sharey="row", squeeze=False, height_ratios=[3, 1])
    edges = np.linspace(0, 1, num_bins + 1)
    for column, (name, (label, probability)) in enumerate(systems.items()):
        label, probability = binary(label, probability, name)
        bins = np.clip(np.ceil(probability * num_bins).astype(int) - 1, 0, num_bins - 1)  # right-closed bins
        size = np.bincount(bins, minlength=num_bins)
        filled = size > 0
        confidence = np.bincount(bins, probability, num_bins)[filled] / size[filled]
        observed = np.bincount(bins, label, num_bins)[filled] / size[filled]
        error = float((size[filled] / len(label) * np.abs(confidence - observed)).sum())
        top, bottom = grid[0, column], grid[1, column]
        top.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
        top.vlines(confidence, confidence, observed, color=CYCLE[1], linewidth=2.2, alpha=0.6)
        top.scatter(confidence, observed, s=16, color=CYCLE[0], zorder=3)
        top.set(title=f"{name}\nECE {error:.3f}", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        bottom.bar(edges[:-1], size / len(label), 1 / num_bins, align="edge", color=CYCLE[0], alpha=0.7)
        bottom.set(xlabel="predicted probability")
    grid[0, 0].set_ylabel("observed share\nof positives")
    grid[1, 0].set_ylabel(f"share of\n{unit}")
    return finish(figure, title, simulated)


def _roc(label: Array, probability: Array, grid: Array) -> tuple[Array, float]:
    """True positive rate on the grid of false positive rates, and the exact area."""
    x, y, _ = roc_curve(*binary(label, probability))
    curve = np.interp(grid, x, y)
    curve[0] = 0.0
    return curve, float(auc(x, y))


def _pr(label: Array, probability: Array, grid: Array) -> tuple[Array, float]:
    """Precision where each recall of the grid is first reached: a step function of area average precision."""
    label, probability = binary(label, probability)
    precision, recall, _ = precision_recall_curve(label, probability)
    steps = np.searchsorted(recall[:-1][::-1], grid, side="left").clip(max=len(recall) - 2)
    return precision[:-1][::-1][steps], float(average_precision_score(label, probability))
