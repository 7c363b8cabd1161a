"""Encoder systems beside each other, seed by seed, and with one modality missing."""

from __future__ import annotations

from typing import Any

from fedsynth.report.gallery import ReportFigure
from fedsynth.report.glossary import arm_title, stage_title
from fedsynth.report.result_figures import Estimate, forest
from fedsynth.report.section import Column, Material, Row, Section, comparison, reading_note
from fedsynth.report.tables import DASH, cell, number, table

MAIN = "fusion_encoder"
SYSTEM_METRICS = (
    Column("AUROC", "test/auroc"),
    Column("AUPRC", "test/auprc"),
    Column("F1", "test/f1"),
    Column("MCC", "test/mcc"),
    Column("balanced accuracy", "test/balanced_accuracy"),
    Column("threshold", "test/threshold"),
)
SYSTEM_NAMES = tuple(column.metric for column in SYSTEM_METRICS)
SYSTEM_TITLES = tuple(column.title for column in SYSTEM_METRICS)
MASK_METRICS = (
    Column("AUROC", "test/auroc"),
    Column("AUPRC", "test/auprc"),
    Column("F1", "test/f1"),
    Column("balanced accuracy", "test/balanced_accuracy"),
    Column("sensitivity", "test/sensitivity"),
    Column("specificity", "test/specificity"),
)
ARMS = ("both", "image_only", "ecg_only")
MASKS = {"both": "[1, 1]", "image_only": "[1, 0]", "ecg_only": "[0, 1]"}


def encoder_section(material: Material) -> Section | None:
    """Tables of all systems, of every seed, of the three masks; a figure where there are several systems."""
    systems = [Row(stage_title(name), name, arm) for name, arm in main_arms(material)]
    overview = comparison(material, "system", systems, SYSTEM_METRICS)
    if not overview:
        return None
    parts = [
        "Each system reads the test records with the modalities it was trained on. The decision threshold"
        " maximizes balanced accuracy on validation records (the largest one among ties). AUROC: probability"
        " that a positive is ranked above a negative; AUPRC: average precision; MCC: correlation of decision"
        " and truth.",
        material.caption(reading_note(material)),
        overview,
    ]
    if len(material.runs) > 1:
        parts += [
            material.caption(f"{systems[0].label}, seed by seed."),
            _by_seed(material, systems[0]),
        ]
    masks = [Row(f"{arm_title(arm)} {MASKS[arm]}", MAIN, arm) for arm in ARMS]
    missing = comparison(material, "mask [X-ray, ECG]", masks, MASK_METRICS)
    if missing:
        parts += [
            material.caption(
                "A modality missing at test time: the same weights, the mask of Eq. (9) set by hand; each mask"
                " has its own threshold."
            ),
            missing,
        ]
    figures = (_figure(material, systems),) if len(systems) > 1 else ()
    shows = ("learning_pretrain_xray", "learning_fusion_encoder")
    return Section("Encoder systems", "\n\n".join(part for part in parts if part), figures, shows)


def main_arms(material: Material) -> list[tuple[str, str]]:
    """(stage, arm) of every encoder: with all modalities it has."""
    found = []
    for name in material.names("fusion_encoder"):
        arms = [arm for arm in ARMS if material.get(name, arm, "test/auroc")]
        if arms:
            found.append((name, arms[0]))
    return found


def _by_seed(material: Material, system: Row) -> str:
    """Ours for every run, then the paper's own seeds where the config lists them."""
    rows = []
    for run in material.runs:
        values = {
            row["metric"]: row["value"]
            for row in (run.stages[system.stage].metrics if system.stage in run.stages else [])
            if row.get("arm") == system.arm
        }
        rows.append([f"ours, seed {run.seed}", *(number(values.get(name)) for name in SYSTEM_NAMES)])
    if (system.stage, system.arm, "test/auroc") in material.published:
        for entry in _paper_seeds(material.runs[0].config):
            cells = [number(entry[name]) if name in entry else DASH for name in SYSTEM_NAMES]
            rows.append([f"*paper, {cell(entry.get('name'))}*", *cells])
    return table(["run", *SYSTEM_TITLES], rows, right=range(1, 7))


def _paper_seeds(config: dict[str, Any]) -> list[dict[str, Any]]:
    return list((config.get("paper") or {}).get("per_seed") or [])


def _figure(material: Material, systems: list[Row]) -> ReportFigure:
    rows = {}
    for row in systems:
        record = material.get(row.stage, row.arm, "test/auroc")
        if record is not None and record.mean is not None:
            rows[row.label] = estimate(material, row, "test/auroc")
    return ReportFigure(
        "encoder_systems",
        "Encoder systems: AUROC",
        "Test AUROC of every system. The interval is a Student t interval over runs, or the bootstrap interval"
        " of a single run; it is cut off at 1.",
        forest(
            rows,
            title="Encoder systems: AUROC on real test records",
            x_label="AUROC",
            limits=(0.0, 1.0),
            simulated=material.simulated,
        ),
    )


def estimate(material: Material, row: Row, metric: str) -> Estimate:
    """A record with the values of the single runs (classifier seeds averaged)."""
    record = material.get(row.stage, row.arm, metric)
    assert record is not None
    assert record.mean is not None
    values = []
    for run in material.runs:
        found = [
            float(item["value"])
            for item in (run.stages[row.stage].metrics if row.stage in run.stages else [])
            if item.get("arm") == row.arm and item["metric"] == metric and item.get("value") is not None
        ]
        if found:
            values.append(sum(found) / len(found))
    return Estimate(
        record.mean,
        record.ci_low,
        record.ci_high,
        tuple(values),
        record.paper,
        record.paper_low,
        record.paper_high,
    )
