"""Federated systems beside each other: what they classify, what an attack finds, what they send (FedMPA)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsynth.report.federated_figures import privacy_plane, score_by_round
from fedsynth.report.federated_tables import PAPER_HEADING, System, paper_table, printed_values, systems
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.result_figures import Estimate
from fedsynth.report.section import Column, Material, Section
from fedsynth.report.sections.encoders import estimate
from fedsynth.report.sections.federated_costs import COST_CAPTION, cost_table
from fedsynth.report.sections.federated_setting import comparability, schedule
from fedsynth.report.stored import Array, NotRunError, read_history
from fedsynth.report.system_names import ABLATIONS, PAPER_SYSTEMS, is_main_system

UTILITY = (
    Column("Acc", "test/accuracy"),
    Column("Prec", "test/precision"),
    Column("Sens", "test/sensitivity"),
    Column("Spec", "test/specificity"),
    Column("F1", "test/f1"),
    Column("UAR", "test/uar"),
)
PRIVACY = (
    Column("attack AUROC", "attack_auroc"),
    Column("ρ", "privacy_score"),
    Column("PPS", "pps"),
    Column("attack, true class", "attack_auroc_true_class"),
    Column("attack, validation", "attack_auroc_val"),
)
SEGMENTS = tuple(Column(column.title, f"segment/{column.metric}") for column in (*UTILITY, *PRIVACY))
SCORE = "val/uar"


def federated_section(material: Material) -> Section | None:
    """Tables of classification, privacy and cost with the paper's numbers beside ours; plane and curves."""
    every = systems(material)
    if not every:
        return None
    found = [one for one in every if is_main_system(one.arm)]
    printed = printed_values(material)
    parts = [comparability(material, has_printed=bool(printed)), schedule(material, every)]
    tables = (
        (
            f"Test {_unit(material)}, classified as the more probable class or, where the system does so, with the"
            f" prototypes; no threshold is tuned. {_spread(material)}",
            paper_table(material, found, UTILITY, printed),
        ),
        (
            "Membership attack by the largest class probability, members: training, non-members: test; ρ and PPS from"
            " it. Beside them the attack by the probability of the true class, and validation as non-members.",
            paper_table(material, found, PRIVACY, printed),
        ),
        (
            "The same of single segments, which are not independent.",
            paper_table(material, found, SEGMENTS, {}),
        ),
        (COST_CAPTION, cost_table(material, found)),
    )
    for caption, text in tables:
        parts += [material.caption(caption), text] if text else []
    figures = tuple(item for item in (_plane(material, found), _by_round(material)) if item)
    return Section("Federated systems", "\n\n".join(part for part in parts if part), figures)


def _unit(material: Material) -> str:
    has_segments = any(record.metric.startswith("segment/") for record in material.records)
    return "participants (their segments' probabilities averaged)" if has_segments else "records"


def _spread(material: Material) -> str:
    if len(material.runs) > 1:
        return f"Bold: mean ± SD over {len(material.runs)} runs; 95 % CI: Student t over runs."
    return f"95 % CI: bootstrap over {_unit(material).split()[0]}; the training is not repeated."


def _plane(material: Material, found: Sequence[System]) -> ReportFigure | None:
    """UAR against ρ; the paper's points in a panel of their own, and none beside simulated data."""
    ours: dict[str, tuple[Estimate, Estimate]] = {}
    for one in found:
        records = [material.get(one.stage, one.arm, name) for name in ("privacy_score", "test/uar")]
        if all(record is not None and record.mean is not None for record in records):
            rho, uar = (estimate(material, one.row, name) for name in ("privacy_score", "test/uar"))
            ours[one.label] = (rho, uar)
    if not ours:
        return None
    panels = {"this run" if len(material.runs) == 1 else f"mean of {len(material.runs)} runs": ours}
    paper = {} if material.simulated else _paper_points(material)
    if paper:
        panels[PAPER_HEADING] = paper
    data = " The paper's points are not drawn beside simulated data." if material.simulated else ""
    return ReportFigure(
        "privacy_plane",
        "Utility and privacy",
        "UAR on test over the privacy score ρ. Dotted lines: equal PPS, the harmonic mean of both; upper right is"
        " better. Bars: 95 % intervals; where those of ρ overlap, the systems cannot be ranked by privacy."
        + data,
        privacy_plane(panels, simulated=material.simulated),
    )


def _paper_points(material: Material) -> dict[str, tuple[Estimate, Estimate]]:
    printed = printed_values(material)
    return {
        title: (Estimate(printed[arm, "privacy_score"].mean), Estimate(printed[arm, "test/uar"].mean))
        for arm, title in PAPER_SYSTEMS.items()
        if (arm, "privacy_score") in printed and (arm, "test/uar") in printed
    }


def _by_round(material: Material) -> ReportFigure | None:
    """Validation UAR of every system by round, mean over runs."""
    panels: dict[str, dict[str, tuple[Array, Array]]] = {}
    for one in systems(material):
        curve = _curve(material, one)
        if curve is None or (one.encoder != one.arm and one.arm in ABLATIONS):
            continue  # other inference of a model that is drawn already
        if is_main_system(one.arm):
            panels.setdefault("systems", {})[one.label] = curve
        elif one.arm in ABLATIONS:
            panels.setdefault("FedMPA and its variants", {})[ABLATIONS[one.arm]] = curve
        else:
            panels.setdefault("more clients", {})[one.label] = curve
    if not panels:
        return None
    full, variants = panels.get("systems", {}).get("FedMPA"), panels.get("FedMPA and its variants")
    if full is not None and variants is not None:
        panels["FedMPA and its variants"] = {"FedMPA": full, **variants}
    return ReportFigure(
        "uar_by_round",
        "Validation UAR by round",
        f"UAR on validation records after each round{'' if len(material.runs) == 1 else ', mean over the runs'}."
        " Of centralized training, as many epochs as a client trains in one round count as one round.",
        score_by_round(panels, y_label="UAR on validation", simulated=material.simulated),
    )


def _curve(material: Material, system: System) -> tuple[Array, Array] | None:
    """(rounds completed, UAR averaged over the runs that got so far)."""
    values: dict[float, list[float]] = {}
    for run in material.runs:
        stage = run.stages.get(system.encoder)
        if stage is None or stage.manifest is None:
            continue
        config = (run.config.get("stages") or {}).get(system.encoder) or {}
        per_round = float(config.get("local_epochs") or 1) if config.get("training") == "centralized" else 1.0
        try:
            rows = read_history(stage)
        except NotRunError:
            continue
        for index, row in enumerate(rows):
            score = row.get(SCORE)
            if score is not None and np.isfinite(score):
                completed = (row.get("round", row.get("epoch", index)) + 1) / per_round
                values.setdefault(completed, []).append(float(score))
    if not values:
        return None
    x = np.array(sorted(values))
    return x, np.array([np.mean(values[at]) for at in x.tolist()])
