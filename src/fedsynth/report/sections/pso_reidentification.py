"""The re-identification network that filters candidates: how well it recognizes patients it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsynth.report.figures import reliability_diagram
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.paper import PaperValue
from fedsynth.report.pso_systems import PAPER_HEADING, printed_rows
from fedsynth.report.pso_tables import digits, every_note, first_stage, kept, percent, percent_bounds, share
from fedsynth.report.records import ReportRecord
from fedsynth.report.section import Material, Section
from fedsynth.report.stored import Array, NotRunError, read_arrays
from fedsynth.report.tables import DASH, cell, table

KIND = "reidentifier"
AUROC, ECE = "test/auroc", "test/ece"
FILE = "test_pairs.safetensors"


def reidentification_section(material: Material) -> Section | None:
    """Test AUROC of same-patient pairs, operating points, and whether its probabilities hold."""
    names = [name for name in material.names(KIND) if _record(material, name, AUROC)]
    if not names:
        return None
    printed = printed_rows(material, "text").get((KIND, AUROC))
    text = [
        "Pairs of real images, one patient or two; no patient of these pairs was trained on, and pairs of two"
        " patients have"
        " like labels. AUROC: how often a pair of one patient is scored above a pair of two; calibration error"
        " (ECE): mean"
        " gap between predicted probability and observed share. **The filter is no better than this network**: what it"
        " misses here (a candidate stands in for the second image), it also lets through.",
        *(_blind(material, name) for name in names),
        material.caption("Held-out patients."),
        _scores(material, names, printed),
        *(part for name in names for part in _points(material, name)),
    ]
    figure = _reliability(material, names)
    figures = (figure,) if figure else ()
    return Section("Re-identification network", "\n\n".join(part for part in text if part), figures)


def _blind(material: Material, name: str) -> str:
    """What to know of a network that cannot tell pairs, in any run."""
    if not every_note(material, name, "cannot_tell"):
        return ""
    return (
        f"**`{cell(name)}` cannot tell pairs of one patient from pairs of two** (AUROC of validation pairs at most"
        " 50 %): a filter that asks it recognizes almost nobody."
    )


def _record(material: Material, name: str, metric: str) -> ReportRecord | None:
    found = (r for r in material.records if r.stage == name and r.metric == metric and r.mean is not None)
    return next(found, None)


def _scores(material: Material, names: list[str], printed: PaperValue | None) -> str:
    header = ["network", "AUROC, test", "95 % CI", "ECE, test", f"{PAPER_HEADING}: AUROC, three hospitals"]
    rows = []
    for name in names:
        auroc, error = _record(material, name, AUROC), _record(material, name, ECE)
        rows.append([
            cell(name), f"**{percent(auroc.mean, auroc.std)}**" if auroc else DASH, percent_bounds(auroc),
            digits(error.mean if error else None), f"{100 * printed.mean:.0f}" if printed else DASH,
        ])  # fmt: skip
    header, rows = kept(rows, header)
    return table(header, rows, right=range(1, len(header)))


def _points(material: Material, name: str) -> list[str]:
    """The operating points as the stage noted them: thresholds chosen on validation pairs, error rates on test pairs."""
    stage = first_stage(material, name)
    points = (stage.notes if stage else {}).get("operating_points") or []
    if not points:
        return []
    header = [
        "rule",
        "value",
        "threshold",
        "same patients missed (FNR)",
        "95 % CI",
        "others flagged (FPR)",
        "95 % CI",
    ]
    rows = [
        [
            f"**{cell(point.get('rule'))}** (configured)" if point.get("configured") else cell(point.get("rule")),
            cell(point.get("value")), digits(point.get("threshold")), *_rate(point, "fnr"), *_rate(point, "fpr"),
        ]
        for point in points
    ]  # fmt: skip
    caption = material.caption(
        f"Operating points of `{cell(name)}`: thresholds chosen on validation pairs, error rates on test pairs."
        + material.first_run
    )
    return [caption, table(header, rows, right=range(1, len(header)))]


def _rate(point: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Share and interval on test pairs, [share, low, high] in the notes."""
    rate, low, high = point.get(f"test_{name}") or (None, None, None)
    return share(rate), (DASH if low is None else f"[{share(low)}, {share(high)}]")


def _balanced(is_same: Array, probability: Array) -> tuple[Array, Array]:
    """Pairs of one patient repeated until both kinds are about as many: so the probability is meant, and its ECE."""
    is_same = is_same.reshape(-1).astype(int)
    repeats = max(1, round(int((is_same == 0).sum()) / max(1, int(is_same.sum()))))
    times = np.where(is_same == 1, repeats, 1)
    return np.repeat(is_same, times), np.repeat(probability, times)


def _reliability(material: Material, names: list[str]) -> ReportFigure | None:
    systems: dict[str, tuple[Array, Array]] = {}
    for name in names:
        stage = first_stage(material, name)
        try:
            if stage is not None:
                systems[name] = _balanced(*read_arrays(stage, FILE, "is_same", "probability"))
        except NotRunError:
            continue
    if not systems:
        return None
    return ReportFigure(
        "pso_reidentification",
        "Calibration of the re-identification network",
        "Test pairs of real images, both kinds weighing the same: observed share of pairs of one patient by"
        " predicted probability. Below the"
        f" diagonal: the network takes strangers for one patient too often.{material.first_run}",
        reliability_diagram(
            systems, title="P(same patient) on held-out pairs", unit="pairs", simulated=material.simulated
        ),
    )
