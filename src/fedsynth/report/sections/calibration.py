"""How far probabilities can be taken at their word: temperature scaling, reliability, confusion matrices."""

from __future__ import annotations

import numpy as np

from fedsynth.report.branches import is_variant
from fedsynth.report.detail_figures import confusion_matrices
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.glossary import stage_title
from fedsynth.report.runs import Run
from fedsynth.report.section import Column, Material, Row, Section, comparison
from fedsynth.report.sections.encoders import main_arms
from fedsynth.report.sections.utility import utility_arms
from fedsynth.report.stored import Array, NotRunError, read_arrays
from fedsynth.report.tables import DASH, cell, number, table

METRICS = (
    Column("Brier", "test/brier"),
    Column("ECE (15 bins)", "test/ece"),
    Column("ECE (10 bins)", "test/ece_10"),
    Column("log loss", "test/nll"),
    Column("temperature", "temperature"),
)
COUNTS = ("tn", "fp", "fn", "tp")


def calibration_section(material: Material) -> Section | None:
    """Calibration before and after temperature scaling; decisions of every main system."""
    rows = []
    for name in material.names("temperature_scaling"):
        settings = (material.runs[0].config.get("stages") or {}).get(name) or {}
        system = stage_title(str((settings.get("inputs") or {}).get("system") or name))
        rows += [Row(f"{system}, as trained", name, "unscaled"), Row(f"{system}, scaled", name, "scaled")]
    scaled = comparison(material, "system", rows, METRICS)
    counts = _decisions(material)
    if not scaled and not counts:
        return None
    parts = []
    if scaled:
        parts += [
            "Brier score: mean of (p − y)². ECE: mean gap between predicted probability and observed share of"
            " positives over equal-width bins, weighted by the records in them. One temperature T per system is"
            " fitted to validation records by likelihood and divides the test logits; it changes no ranking.",
            material.caption("Before and after temperature scaling, test records."),
            scaled,
        ]
    figures: tuple[ReportFigure, ...] = ()
    if counts:
        parts += [
            material.caption(
                "Decisions at the validation threshold: TN / FP / FN / TP on the test records, run by run"
                " (several classifier seeds of a run: the first)."
            ),
            _decision_table(material, counts),
        ]
        # Nothing to draw of a first run that was killed before its first system.
        figures = (
            (_figure(material, counts),) if any(found[0] is not None for found in counts.values()) else ()
        )
    return Section("Calibration and decisions", "\n\n".join(parts), figures, ("calibration",))


def _decisions(material: Material) -> dict[Row, list[Array | None]]:
    """System → [[TN, FP], [FN, TP]] of each run, from the stored scores and thresholds."""
    systems = [Row(stage_title(name), name, arm) for name, arm in main_arms(material)]
    systems += [
        row for row, branch in utility_arms(material) if not is_variant(row.stage) or branch.is_selected
    ]
    counts = {row: [_counts(run, row) for run in material.runs] for row in systems}
    return {row: found for row, found in counts.items() if any(item is not None for item in found)}


def _counts(run: Run, row: Row) -> Array | None:
    stage = run.stages.get(row.stage)
    if stage is None or stage.manifest is None:
        return None
    thresholds = [
        item["value"]
        for item in stage.metrics
        if item.get("arm") == row.arm and item["metric"] == "test/threshold"
    ]
    name = f"{row.arm}/test.probability" if stage.kind == "fusion_encoder" else "test.probability"
    if not thresholds or thresholds[0] is None:
        return None
    try:
        probability, label = read_arrays(stage, "scores.safetensors", name, "test.label")
    except NotRunError:
        return None
    decided = np.atleast_2d(probability)[0] >= float(thresholds[0])
    truth = label.reshape(-1).astype(bool)
    return np.array(
        [
            [(~truth & ~decided).sum(), (~truth & decided).sum()],
            [(truth & ~decided).sum(), (truth & decided).sum()],
        ]
    )


def _decision_table(material: Material, counts: dict[Row, list[Array | None]]) -> str:
    has_paper = any(_published(material, row) for row in counts)
    lines = []
    for row, matrices in counts.items():
        cells = [
            DASH if item is None else " / ".join(str(int(value)) for value in item.reshape(-1))
            for item in matrices
        ]
        lines.append([cell(row.label), *cells, *([_published(material, row) or DASH] if has_paper else [])])
    header = ["system", *(f"seed {run.seed}" for run in material.runs), *(["paper"] if has_paper else [])]
    return table(header, lines, right=range(1, len(header)))


def _published(material: Material, row: Row) -> str:
    found = [material.published.get((row.stage, row.arm, f"test/{name}")) for name in COUNTS]
    return (
        " / ".join(number(value.mean).removesuffix(".0000") for value in found if value) if all(found) else ""
    )


def _figure(material: Material, counts: dict[Row, list[Array | None]]) -> ReportFigure:
    first = {row.label: matrices[0] for row, matrices in counts.items() if matrices[0] is not None}
    return ReportFigure(
        "confusion",
        "Confusion matrices",
        "Counts and shares of each true class at the threshold chosen on validation records."
        + material.first_run,
        confusion_matrices(first, simulated=material.simulated),
    )
