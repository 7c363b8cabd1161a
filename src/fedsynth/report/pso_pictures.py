"""Pictures of image synthesis: the identity filter's verdict on every candidate, made images beside real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedsynth.report.drawing import GREY, Array, finish, require, styled

#: Frame of a candidate by verdict, and its width in points.
FLAGGED, ALLOWED, CHOSEN = "#c00000", "#b4b4b4", "#009e73"
VERDICTS = {
    FLAGGED: (2.2, "flagged: same patient as the source"),
    ALLOWED: (1.2, "allowed, not chosen"),
    CHOSEN: (3.0, "allowed and chosen"),
}


@dataclass(frozen=True)
class Verdicts:
    """One real image, what was made of it, and what the identity filter said.

    Attributes:
        label: Name of its class.
        source: Gray levels [h, w] of the real image.
        candidates: Gray levels [b, h, w].
        probability: P(same patient) [b]; None where nothing was filtered.
        flagged: Candidates the filter refuses [b], bool.
        chosen: The candidate that is taken [b], bool.
    """

    label: str
    source: Array
    candidates: Array
    probability: Array | None
    flagged: Array
    chosen: Array


@styled
def verdict_grid(rows: Sequence[Verdicts], *, simulated: bool = False) -> Figure:
    """Source and candidates of each row; the frame tells the verdict (red, gray, green), P stands below.

    Args:
        rows: One per source image, drawn from top to bottom.
        simulated: Write SIMULATED across the figure.

    Raises:
        ValueError: No row, or arrays of a row that do not agree.
    """
    if not rows:
        raise ValueError(
            "A verdict grid needs at least one source image, got none: leave the figure out instead."
        )
    for row in rows:
        _check(row)
    columns = 1 + max(len(row.candidates) for row in rows)
    figure = Figure(figsize=(0.92 * columns + 0.9, 1.12 * len(rows) + 0.9), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axis in grid.flat:
        _bare(axis)
        axis.set_visible(False)
    for axes, row in zip(grid, rows, strict=True):
        _picture(axes[0], row.source, "black", 0.8)
        axes[0].set_ylabel(row.label, fontsize=8)
        for index, (axis, image) in enumerate(zip(axes[1:], row.candidates, strict=False)):
            color = CHOSEN if row.chosen[index] else FLAGGED if row.flagged[index] else ALLOWED
            _picture(axis, image, color, VERDICTS[color][0])
            if row.probability is not None:
                bold = "bold" if color != ALLOWED else "normal"
                text = f"P = {row.probability[index]:.2f}"
                ink = GREY if color == ALLOWED else color
                axis.set_xlabel(text, fontsize=7, color=ink, fontweight=bold, labelpad=2)
    grid[0, 0].set_title("source", fontsize=8)
    for index in range(1, columns):
        grid[0, index].set_title(f"candidate {index}", fontsize=8)
    handles = [
        Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=color, linewidth=width)
        for color, (width, _) in VERDICTS.items()
    ]
    figure.legend(handles, [text for _, text in VERDICTS.values()], ncol=3, loc="outside lower center")
    return finish(figure, "Identity filter: verdict on every candidate", simulated)


def _check(row: Verdicts) -> None:
    require(np.ndim(row.source) == 2, f"{row.label}: source", "[h, w]", np.asarray(row.source))
    shape = np.asarray(row.source).shape
    candidates = np.asarray(row.candidates)
    require(
        candidates.ndim == 3 and candidates.shape[1:] == shape and len(candidates) > 0,
        f"{row.label}: candidates", f"[b, {shape[0]}, {shape[1]}]", candidates,
    )  # fmt: skip
    for name in ("probability", "flagged", "chosen"):
        values = getattr(row, name)
        if values is not None:
            require(
                np.shape(values) == (len(candidates),),
                f"{row.label}: {name}",
                f"[{len(candidates)}]",
                np.asarray(values),
            )


@styled
def image_pairs(
    panels: Mapping[str, tuple[Array, Array]], *, made: str, title: str, simulated: bool = False
) -> Figure:
    """Two rows a class: real images above, made ones below.

    Args:
        panels: Class → (real [n, h, w], made [m, h, w]), as many as are to be shown.
        made: What the lower row is called.
        title: Of the figure.
        simulated: Write SIMULATED across the figure.

    Raises:
        ValueError: No class, or arrays that are no images.
    """
    if not panels:
        raise ValueError("A grid of images needs at least one class, got none: leave the figure out instead.")
    columns = max(1, *(max(len(real), len(copies)) for real, copies in panels.values()))
    figure = Figure(figsize=(0.92 * columns + 0.9, 2.0 * len(panels) + 0.6), layout="constrained")
    grid = figure.subplots(2 * len(panels), columns, squeeze=False)
    for axis in grid.flat:
        _bare(axis)
        axis.set_visible(False)
    for index, (name, pair) in enumerate(panels.items()):
        for offset, (images, what) in enumerate(zip(pair, ("real", made), strict=True)):
            images = np.asarray(images)
            require(images.ndim == 3, f"{name}, {what}", "[n, h, w]", images)
            axes = grid[2 * index + offset]
            for axis, image in zip(axes, images, strict=False):
                _picture(axis, image, "black" if offset == 0 else CHOSEN, 0.8 if offset == 0 else 1.4)
            axes[0].set_visible(True)
            axes[0].set_ylabel(f"{name}\n{what}", fontsize=8)
    return finish(figure, title, simulated)


def _bare(axis: Axes) -> None:
    axis.set(xticks=[], yticks=[])
    axis.grid(False)


def _picture(axis: Axes, image: Array, color: str, width: float) -> None:
    """Gray levels as they are (0 black, 255 white), no interpolation, in a colored frame."""
    axis.set_visible(True)
    axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    for spine in axis.spines.values():
        spine.set(visible=True, color=color, linewidth=width)
