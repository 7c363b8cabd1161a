"""What the (ε, δ) of a run covers and what it does not: from the ledgers and ``uncovered`` of its stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsynth.report.glossary import stage_title
from fedsynth.report.runs import Run
from fedsynth.report.tables import cell, number, table

ADJACENCY_MEANINGS = {
    "replace_one": "two data sets are neighbors when one record is replaced by another; sizes stay the same",
    "add_or_remove_one": "two data sets are neighbors when one record is added or removed",
}
_SHOWN = ("stage", "mechanism", "epsilon", "delta", "adjacency", "unit", "covered", "not_covered")


def ledger_entries(run: Run) -> list[dict[str, Any]]:
    """All releases of the run in stage order; ε as a float (∞ if not private, NaN if unstated)."""
    entries: list[dict[str, Any]] = []
    for name, stage in run.stages.items():
        for entry in (stage.manifest or {}).get("ledger") or []:
            item = {"stage": name, **entry}
            item["epsilon"] = _float(entry.get("epsilon"))
            item["delta"] = _float(entry.get("delta"))
            if item not in entries:
                entries.append(item)
    return entries


def uncovered(run: Run) -> list[tuple[str, str]]:
    """(stage, what it uses or publishes without protection), in stage order."""
    return [
        (name, str(item))
        for name, stage in run.stages.items()
        for item in (stage.manifest or {}).get("uncovered") or []
    ]


def privacy_section(runs: Sequence[Run]) -> str:
    """The section *Privacy scope*: the guarantee in words, what it leaves open, per-client noise."""
    run = runs[0]
    entries = ledger_entries(run)
    parts = ["## Privacy scope"]
    private = [entry for entry in entries if math.isfinite(entry["epsilon"])]
    if not entries:
        parts.append(
            "**No privacy guarantee.** No stage of this run recorded a differentially private release, so ε"
            " does not apply to anything reported here."
        )
    for entry in entries:
        parts.append(_entry_text(entry))
    if private:
        parts.append(_total_text(private, runs))
    if any(ledger_entries(other) and _budget(other) != _budget(run) for other in runs[1:]):
        parts.append("**The runs do not all have the same ε and δ**; the text above is about the first run.")
    open_points = uncovered(run)
    if open_points:
        parts.append("**Used or published without protection** (declared by the stages):")
        parts.append(
            table(
                ["stage", "not covered by the guarantee"], [[f"`{s}`", cell(text)] for s, text in open_points]
            )
        )
    parts += _per_client(run, {entry["stage"] for entry in entries})
    parts.append(
        "A guarantee on one release is not a guarantee for the whole system, and a failed attack is no proof"
        " of privacy. The noise of this run comes from a seeded generator, so that it can be repeated:"
        " whoever knows the seed can remove the noise. Never publish a release together with its seed."
    )
    return "\n\n".join(parts)


def _entry_text(entry: dict[str, Any]) -> str:
    title = f"**{stage_title(entry['stage'])}** (`{entry['stage']}`)"
    if math.isinf(entry["epsilon"]):
        lines = [f"{title}: **ε = ∞, no privacy** ({cell(entry.get('mechanism'))}), kept as a comparison."]
    else:
        epsilon = cell(entry["epsilon"]) if math.isfinite(entry["epsilon"]) else "not stated"
        delta = cell(entry["delta"]) if math.isfinite(entry["delta"]) else "not stated"
        lines = [f"{title}: **ε = {epsilon}, δ = {delta}**, mechanism: {cell(entry.get('mechanism'))}."]
    adjacency = str(entry.get("adjacency") or "not stated")
    meaning = ADJACENCY_MEANINGS.get(adjacency.lower())
    unit = (
        entry.get("unit") or "one record, not one patient: a patient with several records is protected less"
    )
    lines += [
        "",
        f"- Adjacency: {cell(adjacency)}" + (f" ({meaning})." if meaning else "."),
        f"- Unit of protection: {cell(unit)}.",
        f"- Covered: {cell(entry.get('covered'))}.",
        f"- **Not covered:** {cell(entry.get('not_covered'))}.",
    ]
    rest = {
        key: value for key, value in entry.items() if key not in _SHOWN and value not in (None, "", [], ())
    }
    if rest:
        lines.append(
            "- " + "; ".join(f"{key.replace('_', ' ')}: {cell(value)}" for key, value in rest.items()) + "."
        )
    return "\n".join(lines)


def _total_text(private: list[dict[str, Any]], runs: Sequence[Run]) -> str:
    epsilon = sum(entry["epsilon"] for entry in private)
    delta = sum(entry["delta"] for entry in private if math.isfinite(entry["delta"]))
    text = (
        "**Total of one run**, all private releases together (basic sequential composition): ε ≤"
        f" {epsilon:g}, δ ≤ {delta:g}."
    )
    if len(runs) > 1:
        text += (
            f" This report stands on {len(runs)} runs; if the releases of all of them were published and they"
            f" hold the same records, the sum would be ε ≤ {len(runs) * epsilon:g}, δ ≤"
            f" {len(runs) * delta:g}."
        )
    if len(private) < len(ledger_entries(runs[0])):
        text += " The releases with ε = ∞ are not in this sum: publishing one of them voids the guarantee."
    return text


def _per_client(run: Run, stages: set[str]) -> list[str]:
    parts = []
    for name in run.stages:
        notes = run.stages[name].notes
        report = notes.get("report")
        rows = (report.get("clients") if isinstance(report, dict) else None) or notes.get("clients")
        if name not in stages or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            continue
        columns = list(dict.fromkeys(key for row in rows for key in row))
        body = [[_noise(row.get(column)) for column in columns] for row in rows]
        parts.append(f"**Noise per client** (stage `{name}`):")
        parts.append(table([column.replace("_", " ") for column in columns], body, right=range(len(columns))))
    return parts


def _noise(value: Any) -> str:
    return number(value) if isinstance(value, float) else cell(value)


def _budget(run: Run) -> list[tuple[float, float]]:
    return [(entry["epsilon"], entry["delta"]) for entry in ledger_entries(run)]


def _float(value: Any) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
