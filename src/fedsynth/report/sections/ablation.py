"""FedMPA with one part changed at a time, in the order of the paper, and what the change costs."""

from __future__ import annotations

from collections.abc import Mapping

from fedsynth.report.federated_tables import (
    PAPER_HEADING,
    System,
    bounds,
    printed_values,
    systems,
    three_digits,
)
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.paper import PaperValue
from fedsynth.report.records import ReportRecord
from fedsynth.report.result_figures import forest
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.encoders import estimate
from fedsynth.report.system_names import ABLATIONS
from fedsynth.report.tables import DASH, MINUS, cell, table

FULL = "fedmpa"
UAR = "test/uar"


def ablation_section(material: Material) -> Section | None:
    """UAR, PPS and attack of the full method and of every variant, the paper's UAR beside ours; a forest of UAR."""
    found = {one.arm: one for one in systems(material)}
    kept = [found[arm] for arm in (FULL, *ABLATIONS) if arm in found and _record(material, found[arm], UAR)]
    if not any(one.arm in ABLATIONS for one in kept):
        return None
    text = [
        "FedMPA with one part removed or replaced; everything else, the seed included, stays. *Softmax-only* is the same"
        " trained model without the prototypes at inference. A difference within the intervals may be chance.",
        material.caption("UAR on test; Δ: variant minus full method."),
        _table(material, kept, printed_values(material)),
    ]
    rows = {one.label: estimate(material, one.row, UAR) for one in kept}
    figure = ReportFigure(
        "ablation",
        "FedMPA, part by part: UAR",
        "UAR on test of the full method and of each variant, with 95 % intervals.",
        forest(
            rows,
            title="FedMPA, part by part: UAR on test",
            x_label="UAR",
            limits=(0.0, 1.0),
            simulated=material.simulated,
        ),
    )
    return Section("FedMPA, part by part", "\n\n".join(text), (figure,))


def _record(material: Material, system: System, metric: str) -> ReportRecord | None:
    record = material.get(system.stage, system.arm, metric)
    return record if record is not None and record.mean is not None else None


def _table(material: Material, kept: list[System], printed: Mapping[tuple[str, str], PaperValue]) -> str:
    header = ["system", "UAR", "95 % CI", "Δ UAR", "PPS", "attack AUROC"]
    has_paper = any((one.arm, UAR) in printed for one in kept)
    header += [f"{PAPER_HEADING}: UAR", f"{PAPER_HEADING}: Δ UAR"] if has_paper else []
    full = next((_record(material, one, UAR) for one in kept if one.arm == FULL), None)
    rows = []
    for one in kept:
        uar = _record(material, one, UAR)
        row = [cell(one.label), f"**{three_digits(uar.mean, uar.std)}**" if uar else DASH, bounds(uar)]
        row.append(_change(uar.mean if uar else None, full.mean if full else None, is_full=one.arm == FULL))
        for metric in ("pps", "attack_auroc"):
            record = _record(material, one, metric)
            row.append(three_digits(record.mean, record.std) if record else DASH)
        if has_paper:
            paper, paper_full = printed.get((one.arm, UAR)), printed.get((FULL, UAR))
            row.append(paper.text if paper else DASH)
            digits = paper.decimals if paper else 0
            if paper and paper_full and one.arm != FULL:
                row.append(f"{paper.mean - paper_full.mean:+.{digits}f}".replace("-", MINUS))
            else:
                row.append(DASH)
        rows.append(row)
    return table(header, rows, right=range(1, len(header)))


def _change(value: float | None, full: float | None, *, is_full: bool) -> str:
    if is_full or value is None or full is None:
        return DASH
    return three_digits(value - full, sign=True)
