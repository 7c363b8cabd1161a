"""Synthetic images beside real ones, and how the networks of the image pipeline were trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from fedsynth.report.figures import learning_curves
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.pso_emulation import title_among
from fedsynth.report.pso_names import image_title
from fedsynth.report.pso_pictures import image_pairs
from fedsynth.report.pso_systems import emulated_arms, inputs_of, origin_of
from fedsynth.report.pso_tables import first_stage
from fedsynth.report.runs import StageResult
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.pso_selection import selections, shown_first
from fedsynth.report.stored import Array, NotRunError, read_arrays, read_history

FILE = "images.safetensors"
PER_CLASS = 8
MOST_GRIDS = 2
MOST_LINES = 7
#: Kind → (panel, metrics of its history of which the first that is there is drawn).
HISTORIES = {
    "diadm": ("denoiser: training loss", ("train/loss", "val/loss")),
    "tstr_densenet": ("classifiers: real validation loss", ("val/loss", "train/loss")),
    "reidentifier": ("re-identification: loss", ("val/loss", "train/loss")),
    "image_codec": ("autoencoder: loss", ("val/loss", "train/loss")),
}


def image_section(material: Material) -> Section | None:
    """Grids of synthetic images by class, and learning curves of the networks."""
    shown = shown_first(selections(material))
    pairs = [item for item in (_pairs(material, one.stage, one.label) for one in shown) if item]
    if not pairs:
        return None
    text = (
        "The first synthetic images of each class, in order and not chosen by eye, below the first real training"
        " images of"
        " that class (not their sources). **Real images are shown**: pass this report on only to whom you may pass the"
        f" data.{material.first_run}"
    )
    curves = _curves(material)
    figures = (*_numbered(pairs[:MOST_GRIDS]), *([curves] if curves else []))
    return Section("Synthetic images", text, figures)


def _numbered(items: list[ReportFigure]) -> list[ReportFigure]:
    return [
        ReportFigure(f"pso_images_{i}", one.title, one.caption, one.figure) for i, one in enumerate(items, 1)
    ]


def _pairs(material: Material, name: str, label: str) -> ReportFigure | None:
    config = material.runs[0].config
    stage, origin = first_stage(material, name), origin_of(config, name)
    real_name = inputs_of(config, name).get("images", origin.sites[0] if origin else "")
    real = first_stage(material, real_name)
    if stage is None or real is None:
        return None
    try:
        shown, made = by_class(real), by_class(stage)
    except NotRunError:
        return None
    empty = np.zeros((0, 1, 1))
    panels = {title: (images, made.get(title, empty)) for title, images in shown.items() if title in made}
    if not panels:
        return None
    title = f"Synthetic images: {label}"
    return ReportFigure(
        "pso_images",
        title,
        "Two rows a class: real training images, and synthetic ones.",
        image_pairs(panels, made="synthetic", title=title, simulated=material.simulated),
    )


def by_class(stage: StageResult) -> dict[str, Array]:
    """The first images [n, h, w] of every class or label that a stage left; at most eight each.

    Raises:
        NotRunError: The stage left none.
        ArtifactError: The file is damaged or of another form.
    """
    images, label = read_arrays(stage, FILE, "train.image", "train.label")
    found = {}
    for index, name in enumerate(stage.notes.get("classes") or []):
        rows = np.flatnonzero(label == index if label.ndim == 1 else label[:, index] == 1)[:PER_CLASS]
        if len(rows):
            found[str(name)] = images[rows].mean(axis=1)
    return found


def _line_name(stage: StageResult, taken: Mapping[str, object], emulated: Collection[str]) -> str:
    """The title of the stage's arm, unless another line has it (other sites); else the stage's name."""
    arms = {str(row.get("arm") or "") for row in stage.metrics}
    arm = arms.pop() if len(arms) == 1 else ""
    title = image_title(arm)
    told = None if title is None else title_among(title, arm, emulated)
    return stage.name if told is None or told in taken else told


def _curves(material: Material) -> ReportFigure | None:
    """Loss of every network by epoch, one panel a kind."""
    panels: dict[str, dict[str, tuple[Array, Array]]] = {}
    emulated = emulated_arms(material.runs)
    for kind, (title, metrics) in HISTORIES.items():
        for stage in material.runs[0].of_kind(kind):
            try:
                rows = read_history(stage)
            except NotRunError:
                continue
            metric = next((name for name in metrics if any(row.get(name) is not None for row in rows)), None)
            lines = panels.setdefault(title, {}) if metric else {}
            if metric and len(lines) < MOST_LINES:
                x = np.array([row.get("epoch", index) + 1 for index, row in enumerate(rows)], dtype=float)
                y = np.array(
                    [np.nan if row.get(metric) is None else row[metric] for row in rows], dtype=float
                )
                lines[_line_name(stage, lines, emulated)] = (x[np.isfinite(y)], y[np.isfinite(y)])
    if not panels:
        return None
    return ReportFigure(
        "pso_learning",
        "Learning curves of the image networks",
        "Loss by epoch. The denoiser's loss does not go to 0: it predicts noise-free images from noisy ones. A"
        " validation"
        " loss that rises means overfitting; of classifiers the checkpoint of the lowest one is"
        f" used.{material.first_run}",
        learning_curves(
            panels,
            title="Training of the image networks",
            x_label="epochs completed",
            simulated=material.simulated,
        ),
    )
