"""One federated system against the others on the same participants (stage kind ``system_contrast``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsynth.report.drawing import MINUS
from fedsynth.report.federated_tables import PAPER_HEADING, bounds, printed_values, three_digits
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.records import ReportRecord
from fedsynth.report.result_figures import forest
from fedsynth.report.section import Material, Row, Section
from fedsynth.report.sections.encoders import estimate
from fedsynth.report.system_names import system_rank, system_title
from fedsynth.report.tables import DASH, cell, table

KIND = "system_contrast"
#: Heading → metric of the stage, and the metric of the systems it is a difference of.
METRICS = {"UAR": ("uar", "test/uar"), "PPS": ("pps", "pps")}
DRAWN = "UAR"


@dataclass(frozen=True)
class Contrast:
    """A candidate against one baseline; ``baseline`` is the arm of the numbers."""

    stage: str
    candidate: str
    baseline: str

    @property
    def label(self) -> str:
        return f"{system_title(self.candidate) or self.candidate} {MINUS} {system_title(self.baseline) or self.baseline}"


def system_contrast_section(material: Material) -> Section | None:
    """Differences in UAR and PPS with intervals and adjusted p-values, the paper's beside ours; a forest of UAR."""
    found = _contrasts(material)
    if not found:
        return None
    several = len(material.runs) > 1
    text = [
        "Candidate minus baseline on the same participants. Per run, bootstrap replicates draw training, validation and"
        " test participants with replacement, the same ones for all systems; the models stay as they are. p is"
        " two-sided, adjusted by Holm over both metrics and all baselines; 0.000: no replicate had the other sign."
        + (
            f" Bold: mean ± SD over {len(material.runs)} runs, beside it the interval over runs, which is the chance of"
            f" training. p is that of the run with seed {material.runs[0].seed}."
            if several
            else ""
        ),
        material.caption("Differences between systems."),
        _table(material, found),
    ]
    rows = {
        one.label: estimate(
            material, Row(one.label, one.stage, one.baseline), f"difference/{METRICS[DRAWN][0]}"
        )
        for one in found
        if _difference(material, one, METRICS[DRAWN][0])
    }
    figures: tuple[ReportFigure, ...] = ()
    if rows:
        drawn = forest(
            rows,
            title=f"Difference in {DRAWN}, candidate {MINUS} baseline",
            x_label=f"difference in {DRAWN}",
            reference=0.0,
            simulated=material.simulated,
        )
        caption = (
            "Right of the dotted line the candidate is better. An interval that holds 0 shows no difference."
        )
        figures = (
            ReportFigure("system_contrasts", f"Contrasts of systems: difference in {DRAWN}", caption, drawn),
        )
    return Section("Contrasts of federated systems", "\n\n".join(text), figures)


def _contrasts(material: Material) -> list[Contrast]:
    found = []
    for name in material.names(KIND):
        notes = next(
            stage.notes for run in material.runs for stage in run.of_kind(KIND) if stage.name == name
        )
        candidate = str(notes.get("candidate") or "candidate")
        arms = dict.fromkeys(record.arm for record in material.records if record.stage == name)
        found += [Contrast(name, candidate, arm) for arm in sorted(arms, key=system_rank)]
    return [one for one in found if any(_difference(material, one, metric) for metric, _ in METRICS.values())]


def _difference(material: Material, contrast: Contrast, metric: str) -> ReportRecord | None:
    record = material.get(contrast.stage, contrast.baseline, f"difference/{metric}")
    return record if record is not None and record.mean is not None else None


def _table(material: Material, found: list[Contrast]) -> str:
    printed = printed_values(material)
    header = ["contrast"]
    papers = []
    for title, (_, metric) in METRICS.items():
        header += [title, "95 % CI", "p (Holm)"]
        if any({(one.candidate, metric), (one.baseline, metric)} <= printed.keys() for one in found):
            papers.append((title, metric))
    header += [f"{PAPER_HEADING}: {title}" for title, _ in papers]
    rows = []
    for one in found:
        row = [cell(one.label)]
        for metric, _ in METRICS.values():
            record = _difference(material, one, metric)
            value = three_digits(record.mean, record.std, sign=True) if record else DASH
            row += [f"**{value}**" if record else DASH, bounds(record), _p_value(material, one, metric)]
        for _, metric in papers:
            pair = printed.get((one.candidate, metric)), printed.get((one.baseline, metric))
            if pair[0] is None or pair[1] is None:
                row.append(DASH)
            else:
                change = pair[0].mean - pair[1].mean
                row.append(f"{change:+.{pair[0].decimals}f}".replace("-", MINUS))
        rows.append(row)
    return table(header, rows, right=range(1, len(header)))


def _p_value(material: Material, contrast: Contrast, metric: str) -> str:
    """That of the first run: p-values have no mean."""
    stage = material.runs[0].stages.get(contrast.stage)
    rows: list[dict[str, Any]] = stage.metrics if stage else []
    for row in rows:
        if row.get("arm") == contrast.baseline and row["metric"] == f"p_holm/{metric}":
            value = row.get("value")
            return DASH if value is None or not math.isfinite(value) else f"{value:.3f}"
    return DASH
