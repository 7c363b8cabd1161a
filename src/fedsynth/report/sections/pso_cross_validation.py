"""Cross-validation over methods: ranks, tests and the critical-difference diagram."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedsynth.errors import ArtifactError
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.pso_emulation import title_among
from fedsynth.report.pso_figures import rank_diagram
from fedsynth.report.pso_names import image_title
from fedsynth.report.pso_systems import emulated_arms
from fedsynth.report.pso_tables import first_stage, percent
from fedsynth.report.runs import StageResult
from fedsynth.report.section import Material, Section
from fedsynth.report.stored import NotRunError
from fedsynth.report.tables import cell, table

KIND = "cross_validation"
FILE = "folds.json"


def cross_validation_section(material: Material) -> Section | None:
    """Mean ranks and scores of every method, pairs with Holm's p, and the diagram; of the first run."""
    stage = next(filter(None, (first_stage(material, name) for name in material.names(KIND))), None)
    if stage is None:
        return None
    scores, ranks = read_folds(stage)
    titles = _titles(material, scores)
    text = [
        f"Each training set is cut into {ranks['num_folds']} folds; a classifier is trained without each fold and"
        " tested on"
        " the real test images. Methods are ranked within a fold (1 is best). Friedman's test asks whether any method"
        " differs; then Wilcoxon's signed-rank test compares every pair, p adjusted by Holm. Folds share"
        " training images,"
        " so that p is descriptive: too small for a claim about new data.",
        _verdict(ranks),
        material.caption(f"Macro AUROC on real test images, percent, and mean rank.{material.first_run}"),
        _ranks(ranks, scores, titles),
        material.caption("Pairs, the better mean rank first."),
        _pairs(ranks, titles),
    ]
    figure = ReportFigure(
        "pso_ranks",
        "Critical-difference diagram",
        "Mean rank over folds; better on the left. A bar joins methods that are not distinguished, those with a"
        " dot on it;"
        f" it is dotted where it passes a method that does not belong to it.{material.first_run}",
        rank_diagram(
            {titles[arm]: rank for arm, rank in ranks["mean_ranks"].items()},
            [[titles[arm] for arm in clique] for clique in ranks["cliques"]],
            title="Mean ranks over folds",
            simulated=material.simulated,
        ),
    )
    return Section("Cross-validation over methods", "\n\n".join(text), (figure,))


def read_folds(stage: StageResult) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Method → AUROC in every fold; ranks, tests and cliques as the stage found them.

    Raises:
        NotRunError: The stage left no folds.
        ArtifactError: The file is damaged or of another form.
    """
    path = stage.path / FILE
    if not path.is_file():
        raise NotRunError(f"stage {stage.name} left no {FILE}")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        scores = {str(arm): [float(value) for value in folds] for arm, folds in held["scores"].items()}
        ranks = dict(held["ranks"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{path} must hold scores[method][fold] and ranks, got something else ({error}). Delete its folder and run"
            " again."
        ) from error
    if set(ranks.get("mean_ranks") or {}) != set(scores) or len(scores) < 2:
        raise ArtifactError(
            f"{path} must rank the methods it scores, at least two, got {sorted(scores)}. Run again."
        )
    return scores, ranks


def _titles(material: Material, arms: Iterable[str]) -> dict[str, str]:
    emulated = emulated_arms(material.runs)
    return {arm: title_among(image_title(arm) or arm, arm, emulated) for arm in arms}


def _verdict(ranks: Mapping[str, Any]) -> str:
    """Friedman's test in words, and whether there are folds enough to distinguish anything."""
    alpha, folds, num_pairs = ranks["alpha"], ranks["num_folds"], len(ranks["pairs"])
    friedman = ranks["friedman"]
    text = "Two methods: no test over all of them."
    if friedman:
        text = f"Friedman: χ² = {friedman['statistic']:.2f}, p = {_p(friedman['p_value'])}"
        text += (
            "."
            if friedman["p_value"] <= alpha
            else f", above {alpha:g}: **no method is distinguished from another**."
        )
    if not ranks["can_distinguish"]:
        return text + (
            f" **{folds} folds are too few** to distinguish any of {num_pairs} pairs, whatever the scores: the smallest"
            f" possible p, 2^(1−{folds}), exceeds {alpha:g} after Holm. Bars then say nothing about the methods."
        )
    told = sum(bool(pair["is_distinguished"]) for pair in ranks["pairs"])
    return f"{text} {told} of {num_pairs} pairs are distinguished at {alpha:g}."


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"


def _ranks(ranks: Mapping[str, Any], scores: Mapping[str, list[float]], titles: Mapping[str, str]) -> str:
    rows = []
    for arm, rank in ranks["mean_ranks"].items():
        folds = np.array(scores[arm])
        rows.append(
            [cell(titles[arm]), f"**{rank:.2f}**", percent(float(folds.mean()), float(folds.std(ddof=1)))]
        )
    return table(["method", "mean rank", "AUROC, mean ± SD over folds"], rows, right=(1, 2))


def _pairs(ranks: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    rows = [
        [
            cell(f"{titles[pair['better']]} / {titles[pair['worse']]}"), _p(pair["p_value"]), _p(pair["adjusted_p"]),
            "yes" if pair["is_distinguished"] else "no",
        ]
        for pair in ranks["pairs"]
    ]  # fmt: skip
    return table(["pair", "Wilcoxon p", "Holm p", "distinguished"], rows, right=(1, 2))
