"""Which figure is drawn from which artifact, and what to say when the artifact is not there.

Figures of several runs: ROC and precision-recall curves use every run; the others show the first run
(their caption says so), because their panels have no meaningful mean over runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsynth.report import figures
from fedsynth.report.branches import is_variant
from fedsynth.report.glossary import arm_title, stage_title
from fedsynth.report.runs import Run, StageResult
from fedsynth.report.stored import (
    NotAskedError,
    NotRunError,
    find_stage,
    missing,
    read_arrays,
    read_history,
    read_scores,
)

Array = NDArray[Any]

#: Systems in one figure, beyond which only the main branch is drawn.
MOST_CURVES = 4
#: What a client may hold, counted by class in the notes of the stage that made the clients.
HELD = {
    "images_by_class": "X-ray images", "beats_by_class": "ECG beats",
    "participants_by_class": "Participants", "segments_by_class": "Segments",
}  # fmt: skip
#: Stage kinds with a history.json.
HISTORY_KINDS = ("pretrain_xray", "fusion_encoder", "latent_ddpm")


@dataclass(frozen=True)
class ReportFigure:
    """One drawn figure with its file name (no suffix), title and how to read it."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Gallery:
    """The figures that could be drawn, and a line for each that could not."""

    figures: tuple[ReportFigure, ...]
    left_out: tuple[str, ...]


def build_gallery(runs: Sequence[Run], *, simulated: bool) -> Gallery:
    """Draw every figure the runs' artifacts allow.

    Args:
        runs: At least one; the first is shown where only one can be.
        simulated: Write SIMULATED across every figure.

    Raises:
        ArtifactError: A file the figure needs is there but damaged or of an unexpected form.
    """
    drawn: list[ReportFigure] = []
    left_out: list[str] = []
    one = "" if len(runs) == 1 else f" Shown: run {runs[0].label}, the first of {len(runs)}."
    jobs: list[tuple[str, Callable[[], ReportFigure]]] = [
        ("Data partition", lambda: _partition(runs[0], one, simulated)),
        *[
            (f"Learning curves of {kind}", lambda kind=kind: _learning(runs[0], kind, one, simulated))
            for kind in HISTORY_KINDS
        ],
        ("ROC curves", lambda: _curves(runs, "roc", simulated)),
        ("Precision-recall curves", lambda: _curves(runs, "pr", simulated)),
        ("Latent space", lambda: _latents(runs[0], one, simulated)),
        ("Nearest-neighbor distances", lambda: _distances(runs[0], one, simulated)),
        ("Calibration", lambda: _calibration(runs[0], one, simulated)),
    ]
    for title, draw in jobs:
        try:
            drawn.append(draw())
        except NotAskedError:
            continue
        except NotRunError as reason:
            left_out.append(f"{title}: left out, {reason}")
    return Gallery(tuple(drawn), tuple(left_out))


def _partition(run: Run, one: str, simulated: bool) -> ReportFigure:
    stage = find_stage(run, "clients" if run.of_kind("clients") else "speech_clients")
    rows = (stage.notes.get("report") or {}).get("clients")
    if not rows:
        raise NotRunError(f"stage {stage.name} (kind clients) left no counts in its notes")
    counts = {}
    for field, title in HELD.items():
        if all(isinstance(row.get(field), dict) for row in rows):
            classes = range(max(2, 1 + max(int(label) for row in rows for label in row[field])))
            counts[title] = np.array([[int(row[field].get(str(c), 0)) for c in classes] for row in rows])
    if not counts:
        raise NotRunError(f"the notes of stage {stage.name} give no counts per class")
    return ReportFigure(
        "partition",
        "Data partition",
        "Training records each client holds, by class. Unequal heights and mixes are the heterogeneity the"
        f" federated training has to cope with.{one}",
        figures.partition_bars(
            counts,
            clients=[str(row.get("client", index)) for index, row in enumerate(rows)],
            simulated=simulated,
        ),
    )


def _learning(run: Run, kind: str, one: str, simulated: bool) -> ReportFigure:
    stage = find_stage(run, kind)
    rows = read_history(stage)
    counter = "round" if "round" in rows[0] else "epoch"
    # One epoch of the federated loop is one communication round.
    axis = "round" if kind == "fusion_encoder" else counter
    x = np.array([row.get(counter, index) for index, row in enumerate(rows)], dtype=float) + 1
    names = list(dict.fromkeys(name for row in rows for name in row if name != counter))
    panels: dict[str, dict[str, tuple[Array, Array]]] = {}
    for name in names:
        panel, line = _place(name)
        if panel is not None:
            y = np.array([_float(row.get(name)) for row in rows])
            panels.setdefault(panel, {})[line] = (x[np.isfinite(y)], y[np.isfinite(y)])
    if not panels:
        raise NotRunError(f"history.json of stage {stage.name} holds no loss and no score")
    ordered: dict[str, dict[str, tuple[Array, Array]]]
    ordered = {name: panels[name] for name in ("Loss", "Score", "Training loss per client") if name in panels}
    return ReportFigure(
        f"learning_{kind}",
        f"Learning curves: {stage_title(stage.name)}",
        f"Loss and validation scores by {axis}. A validation loss that rises while the training loss falls"
        f" means overfitting.{one}",
        figures.learning_curves(
            ordered,
            title=f"Learning curves: {stage_title(stage.name)}",
            x_label=f"{axis}s completed",
            simulated=simulated,
        ),
    )


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _place(name: str) -> tuple[str | None, str]:
    """(panel, line name) of a logged metric; panel None: not drawn."""
    parts = name.split("/")
    if parts[0] in ("client", "clients") and len(parts) > 2:
        return ("Training loss per client", f"client {parts[1]}") if "loss" in parts[-1] else (None, name)
    if "loss" in parts[-1]:
        return "Loss", name
    if parts[-1] in ("auroc", "auprc", "balanced_accuracy", "accuracy", "f1"):
        return "Score", name
    return None, name


def _curves(runs: Sequence[Run], which: str, simulated: bool) -> ReportFigure:
    systems: dict[str, list[figures.Unit]] = {}
    for run in runs:
        for stage in main_stages(run, "tstr_mlp"):
            label, probability = read_scores(stage)
            if label.min() == label.max():
                raise NotRunError(f"the test records of stage {stage.name} are of one class")
            seeds = [(label, row) for row in probability]
            # The unit of the tables: the run when there are several, else the classifier seed.
            systems.setdefault(_arm(stage), []).extend(
                [seeds] if len(runs) > 1 else [[seed] for seed in seeds]
            )
    if not systems:
        raise missing(runs[0], "tstr_mlp")
    units = "runs" if len(runs) > 1 else "classifier seeds"
    if which == "roc":
        return ReportFigure(
            "roc",
            "ROC curves",
            "Classifiers trained on each source of latents, tested on real records. Line: mean over"
            f" {units}; band: ± 1 SD. Nearer the upper left is better; the diagonal is guessing.",
            figures.roc_curves(systems, simulated=simulated),
        )
    return ReportFigure(
        "precision_recall",
        "Precision-recall curves",
        f"The same classifiers. Line: mean over {units}; band: ± 1 SD. The dotted line is what guessing"
        " reaches.",
        figures.pr_curves(systems, simulated=simulated),
    )


def _latents(run: Run, one: str, simulated: bool) -> ReportFigure:
    encode = find_stage(run, "encode")
    real = read_arrays(encode, "latents.safetensors", "train.latent", "train.label")
    sources: dict[str, tuple[Array, Array]] = {"real (training)": (real[0], real[1])}
    for kind in ("mix", "synthesize"):
        for stage in main_stages(run, kind):
            if (stage.path / "samples.safetensors").is_file():
                latent, label = read_arrays(stage, "samples.safetensors", "latent", "label")
                sources[stage_title(stage.name)] = (latent, label)
    if len(sources) == 1:
        raise missing(run, "mix", "synthesize")
    return ReportFigure(
        "latent_pca",
        "Latent space",
        "Principal axes of the real training latents; every panel has the same axes. Synthetic clouds"
        f" should cover the real ones, class by class; two axes show only part of the difference.{one}",
        figures.latent_pca(sources, simulated=simulated),
    )


def _distances(run: Run, one: str, simulated: bool) -> ReportFigure:
    train, held_out = read_arrays(find_stage(run, "audit"), "distances.safetensors", "train", "held_out")
    return ReportFigure(
        "neighbor_distances",
        "Nearest-neighbor distances",
        "Distance from each synthetic record to its nearest real one. A training curve left of the held-out"
        f" curve would mean that training records are copied. No proof of privacy either way.{one}",
        figures.distance_histogram(train, held_out, simulated=simulated),
    )


def _calibration(run: Run, one: str, simulated: bool) -> ReportFigure:
    systems: dict[str, tuple[Array, Array]] = {}
    for kind in ("fusion_encoder", "tstr_mlp"):
        for stage in main_stages(run, kind):
            if (stage.path / "scores.safetensors").is_file():
                label, probability = read_scores(stage)
                systems[_arm(stage)] = (np.tile(label, len(probability)), probability.reshape(-1))
    if not systems:
        raise missing(run, "fusion_encoder", "tstr_mlp")
    return ReportFigure(
        "calibration",
        "Calibration",
        "Points on the diagonal: a predicted 80 % is right in 80 % of cases. Below it: overconfident in the"
        f" positive class. Lower bars: how many records fall in each bin (classifier seeds pooled).{one}",
        figures.reliability_diagram(systems, simulated=simulated),
    )


def main_stages(run: Run, kind: str) -> list[StageResult]:
    """Stages of a kind; of more than four those of the main branch only, or a figure could not be read."""
    found = run.of_kind(kind)
    if len(found) <= MOST_CURVES:
        return found
    if kind == "fusion_encoder":
        return found[:1]  # the federated encoder, which the others are compared with
    return [stage for stage in found if not is_variant(stage.name)] or found[:MOST_CURVES]


def _arm(stage: StageResult) -> str:
    arms = {str(row.get("arm") or "") for row in stage.metrics} - {""}
    return arm_title(arms.pop()) if len(arms) == 1 else stage_title(stage.name)
