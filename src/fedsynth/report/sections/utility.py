"""TSTR: classifiers trained on real, mixture and diffusion latents, by privacy budget and protocol."""

from __future__ import annotations

import math

from fedsynth.report.branches import Branch
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.result_figures import Estimate, budget_curves
from fedsynth.report.section import Column, Material, Row, Section, comparison, reading_note
from fedsynth.report.sections.encoders import estimate

METRICS = (
    Column("AUROC", "test/auroc"),
    Column("AUPRC", "test/auprc"),
    Column("F1", "test/f1"),
    Column("balanced accuracy", "test/balanced_accuracy"),
    Column("sensitivity", "test/sensitivity"),
    Column("specificity", "test/specificity"),
)
_ORDER = {"real": 0, "mixture": 1, "diffusion": 2}


def utility_section(material: Material) -> Section | None:
    """One table by generator and ε, the primary protocol apart; a curve where there are several budgets."""
    arms = utility_arms(material)
    standardized = [row for row, branch in arms if not branch.is_selected]
    primary = [row for row, branch in arms if branch.is_selected]
    overview = comparison(material, "trained on", standardized, METRICS)
    if not overview:
        return None
    parts = [
        "A 64→192→96→1 classifier (Eq. 32) is trained on latents of one source and tested on the real test"
        " latents; its threshold comes from real validation latents. *Real latents* are the ceiling: what a"
        " synthetic set can reach at best.",
        "**Standardized protocol**: the same number of samples of every generator, the same classifier seeds,"
        " the final average of the diffusion model; nothing is selected.",
        material.caption(reading_note(material)),
        overview,
    ]
    selected = comparison(material, "trained on", primary, METRICS)
    if selected:
        parts += [
            "**Primary protocol** (the paper's own headline): the diffusion model learned 10,000 mixture samples"
            " and its snapshot is selected by the ranking of real validation latents. The selection reads"
            " private records, so an auditor made it and the guarantee does not cover it; it must not be compared"
            " with the table above.",
            selected,
        ]
    figures = tuple(item for item in (_figure(material, arms),) if item)
    shows = ("roc", "precision_recall", "learning_latent_ddpm")
    return Section("Train on synthetic, test on real (TSTR)", "\n\n".join(parts), figures, shows)


def utility_arms(material: Material) -> list[tuple[Row, Branch]]:
    """Every TSTR stage with the branch its training latents come from: real, mixture, diffusion; small ε first."""
    found = []
    for name in material.names("tstr_mlp"):
        branch = material.branch(name) or Branch("real")
        arms = dict.fromkeys(record.arm for record in material.records if record.stage == name)
        label = branch.title if material.branch(name) else name
        found += [(Row(label, name, arm), branch) for arm in arms]
    key = {
        row: (_ORDER.get(branch.generator, 3), branch.is_selected, branch.is_paid, branch.epsilon or 0.0)
        for row, branch in found
    }
    return sorted(found, key=lambda item: key[item[0]])


def _figure(material: Material, arms: list[tuple[Row, Branch]]) -> ReportFigure | None:
    lines: dict[str, dict[str, dict[float, Estimate]]] = {"AUROC": {}, "balanced accuracy": {}}
    ceilings: dict[str, dict[str, float]] = {}
    for title, metric in (("AUROC", "test/auroc"), ("balanced accuracy", "test/balanced_accuracy")):
        for row, branch in arms:
            record = material.get(row.stage, row.arm, metric)
            if record is None or record.mean is None:
                continue
            if branch.epsilon is None:
                ceilings.setdefault(title, {})["real latents (ceiling)"] = record.mean
                continue
            name = branch.generator + (" (primary)" if branch.is_selected else "")
            name += " (all paid)" if branch.is_paid else ""
            lines[title].setdefault(name, {})[branch.epsilon] = estimate(material, row, metric)
    if len({epsilon for line in lines["AUROC"].values() for epsilon in line}) < 3:
        return None
    return ReportFigure(
        "utility_by_budget",
        "Utility by privacy budget",
        "Left AUROC, right balanced accuracy of classifiers trained on synthetic latents. Vertical lines: 95 %"
        f" intervals. ε = {'∞'}: released without noise. Diamonds: published values.",
        budget_curves(
            lines, references=ceilings, title="Utility by privacy budget", simulated=material.simulated
        ),
    )


def budget_order(branch: Branch) -> tuple[int, float]:
    """Sorts real latents first, then small ε to large, no noise last."""
    return (0, 0.0) if branch.epsilon is None else (1, branch.epsilon if branch.epsilon else math.inf)
