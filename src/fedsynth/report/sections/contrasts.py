"""Differences between two systems on the same test records."""

from __future__ import annotations

from fedsynth.report.gallery import ReportFigure
from fedsynth.report.glossary import metric_title, stage_title
from fedsynth.report.records import ReportRecord
from fedsynth.report.result_figures import Estimate, forest
from fedsynth.report.section import OUTSIDE, OUTSIDE_NOTE, Material, Section
from fedsynth.report.tables import DASH, cell, interval, mean_and_sd, number, table

ARM = "contrast"
SHOWN = ("auroc", "auprc", "balanced_accuracy", "f1", "sensitivity", "specificity")
DRAWN = "auroc"


def contrast_section(material: Material) -> Section | None:
    """A table of differences with intervals and Holm-adjusted p-values, and a forest plot."""
    names = material.names("contrast")
    rows = [row for name in names for row in _rows(material, name)]
    if not rows:
        return None
    several = len(material.runs) > 1
    seed = material.runs[0].seed
    text = [
        "Candidate minus baseline on the same test records, each at its own validation threshold. Per run, 2,000"
        " bootstrap replicates draw test records with replacement, the same ones for both systems: that is the"
        " chance of having tested these patients. "
        + (
            "The interval beside our mean is over runs: the chance of training. The bootstrap interval and p are"
            f" those of the run with seed {seed}, the seed the paper gives its differences for."
            if several
            else "The interval is that of the bootstrap."
        ),
        "p = 2 min(P(d ≤ 0), P(d ≥ 0)) over replicates, adjusted by Holm over all metrics of one contrast (more than"
        " are shown here); 0.0000: no replicate had the other sign."
        + (f" {OUTSIDE_NOTE}." if material.published else ""),
        material.caption("Differences, test records."),
        _table(material, rows),
    ]
    return Section("Contrasts", "\n\n".join(text), _figures(material, names))


def _rows(material: Material, name: str) -> list[tuple[str, str, ReportRecord]]:
    found = [(metric, material.get(name, ARM, f"difference/{metric}")) for metric in SHOWN]
    return [
        (name, metric, record) for metric, record in found if record is not None and record.mean is not None
    ]


def contrast_title(material: Material, name: str) -> str:
    """``federated encoder, both − X-ray only``: the title of the stage, else of its two systems."""
    title = stage_title(name)
    if title != name:
        return title
    config = (material.runs[0].config.get("stages") or {}).get(name) or {}
    inputs = config.get("inputs") or {}
    sides = [
        " ".join(filter(None, (stage_title(str(inputs.get(role))), config.get(f"{role}_arm"))))
        for role in ("candidate", "baseline")
    ]
    return " − ".join(sides)


def _first(material: Material, name: str, metric: str) -> dict[str, object]:
    """What the first run measured."""
    stage = material.runs[0].stages.get(name)
    for row in stage.metrics if stage else []:
        if row["metric"] == metric:
            return row
    return {}


def _table(material: Material, rows: list[tuple[str, str, ReportRecord]]) -> str:
    several, paper = len(material.runs) > 1, any(record.paper is not None for _, _, record in rows)
    header = ["contrast", "metric", "ours"]
    header += ["95 % CI over runs"] if several else []
    header += ["95 % CI, bootstrap", "p (Holm)"] + (["paper"] if paper else [])
    lines, last = [], ""
    for name, metric, record in rows:
        one = _first(material, name, f"difference/{metric}")
        bounds = [one.get("ci_low"), one.get("ci_high")]
        drawn = DASH if None in bounds else f"[{number(_real(bounds[0]))}, {number(_real(bounds[1]))}]"
        p = number(_real(_first(material, name, f"p_holm/{metric}").get("value")))
        line = ["" if name == last else cell(contrast_title(material, name)), metric_title(metric)]
        line += [f"**{mean_and_sd(record.mean, record.std)}**", *([interval(record)] if several else [])]
        line += [drawn, p, *([_paper(record)] if paper else [])]
        lines.append(line)
        last = name
    return table(header, lines, right=range(2, len(header)))


def _paper(record: ReportRecord) -> str:
    if record.paper is None:
        return DASH
    own = (
        f" [{number(record.paper_low)}, {number(record.paper_high)}]" if record.paper_low is not None else ""
    )
    return f"{number(record.paper)}{own}{' ' + OUTSIDE if record.paper_is_outside else ''}"


def _real(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]


def _figures(material: Material, names: list[str]) -> tuple[ReportFigure, ...]:
    rows = {}
    for name in names:
        record = material.get(name, ARM, f"difference/{DRAWN}")
        if record is None or record.mean is None:
            continue
        found = [
            _real(row["value"])
            for run in material.runs
            if name in run.stages
            for row in run.stages[name].metrics
            if row["metric"] == f"difference/{DRAWN}"
        ]
        values = tuple(value for value in found if value is not None)
        rows[contrast_title(material, name)] = Estimate(
            record.mean,
            record.ci_low,
            record.ci_high,
            values,
            record.paper,
            record.paper_low,
            record.paper_high,
        )
    if not rows:
        return ()
    return (
        ReportFigure(
            "contrasts",
            "Contrasts: difference in AUROC",
            "Right of the dotted line the candidate is better. An interval that holds 0 shows no difference.",
            forest(
                rows,
                title="Difference in AUROC, candidate − baseline",
                x_label="difference in AUROC",
                reference=0.0,
                simulated=material.simulated,
            ),
        ),
    )
