"""What the (ε, δ) of a run covers and what it does not: from the ledgers and ``uncovered`` of its stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsynth.report.drawing import CLASS_NAMES
from fedsynth.report.glossary import stage_title
from fedsynth.report.runs import Run
from fedsynth.report.tables import DASH, cell, number, table

ADJACENCY_MEANINGS = {
    "replace_one": "two data sets are neighbors when one record is replaced by another; sizes stay the same",
    "replace_one_any_label": "two data sets are neighbors when one record is replaced by any other of the same client,"
    " of whatever class; the number of records of a client stays the same",
    "add_or_remove_one": "two data sets are neighbors when one record is added or removed",
}
_SHOWN = ("stage", "mechanism", "epsilon", "delta", "adjacency", "unit", "covered", "not_covered", "parts")


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
    private = _private(run)
    if not entries:
        parts.append(
            "**No privacy guarantee.** No stage of this run recorded a differentially private release, so ε"
            " does not apply to anything reported here."
        )
    for group in _alike(entries):
        parts.append(_entry_text(group[0], [entry["stage"] for entry in group[1:]]))
    if private:
        parts.append(_total_text(private, runs))
    if any(ledger_entries(other) and _budget(other) != _budget(run) for other in runs[1:]):
        parts.append("**The runs do not all have the same ε and δ**; the text above is about the first run.")
    open_points = uncovered(run)
    if open_points:
        parts.append("**Used or published without protection** (declared by the stages):")
        stages_of: dict[str, list[str]] = {}
        for stage, text in open_points:
            stages_of.setdefault(text, []).append(f"`{stage}`")
        rows = [[cell(text), ", ".join(stages)] for text, stages in stages_of.items()]
        parts.append(table(["not covered by the guarantee", "stages"], rows))
    parts += _per_client(run, {entry["stage"] for entry in private})
    parts.append(
        "A guarantee on one release is not a guarantee for the whole system, and a failed attack is no proof"
        f" of privacy.{_noise_source(run, [entry['stage'] for entry in private])}"
    )
    return "\n\n".join(parts)


def _is_secure(settings: Mapping[str, Any]) -> bool:
    """Whether the noise on prototypes, or else that of the stage's own mechanism, came from the operating system."""
    prototypes = settings.get("prototype_privacy") or {}
    mechanism = prototypes if prototypes.get("mechanism") == "gaussian" else settings
    return bool(mechanism.get("secure_noise"))


def _noise_source(run: Run, stages: Sequence[str]) -> str:
    """Whether somebody can draw the noise again."""
    secure = [
        name
        for name in stages
        if name in run.stages and _is_secure((run.stages[name].manifest or {}).get("settings", {}))
    ]
    names = ", ".join(f"`{name}`" for name in secure)
    text = (
        f" The noise of {names} was taken from the operating system and is never drawn again."
        if secure
        else ""
    )
    if len(secure) < len(stages) or not stages:
        subject = "other noise of this run" if secure else "noise of this run"
        text += (
            f" The {subject} comes from a seeded generator, so that it can be repeated: whoever knows the seed can"
            " remove the noise. Never publish a release together with its seed."
        )
    return text


def _alike(entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Entries without a guarantee that say the same are told once."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for entry in entries:
        same = str(entry.get("not_covered")) if math.isinf(entry["epsilon"]) else entry["stage"]
        groups.setdefault(same, []).append(entry)
    return list(groups.values())


def _entry_text(entry: dict[str, Any], also: Sequence[str] = ()) -> str:
    names = ", ".join(f"`{name}`" for name in (entry["stage"], *also))
    title = f"**{stage_title(entry['stage'])}** ({names})"
    if math.isinf(entry["epsilon"]):
        return f"{title}: **ε = ∞, no privacy**. Without any guarantee: {cell(entry.get('not_covered'))}."
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
    rest = {}
    for key, value in entry.items():
        if key not in _SHOWN and value not in (None, "", [], ()):
            rest[key] = " to ".join(map(cell, value)) if key.endswith("_range") else cell(value)
    if rest:
        lines.append(
            "- " + "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in rest.items()) + "."
        )
    if entry.get("parts"):
        lines += ["", _parts_table(entry["parts"])]
    return "\n".join(lines)


def _parts_table(parts: Sequence[dict[str, Any]]) -> str:
    """What one budget paid for: the Gaussian releases that are composed, each with its share of μ²."""
    header = ["part", "releases", "share of the budget", "sensitivity Δ", "noise SD σ"]
    rows = [
        [
            cell(part["name"]),
            f"{int(part['num_releases']):,}",
            f"{100 * float(part['share']):.3g} %",
            number(part["sensitivity"]),
            number(part["noise_std"]),
        ]
        for part in parts
    ]
    return table(header, rows, right=range(1, len(header)))


def _total_text(private: list[dict[str, Any]], runs: Sequence[Run]) -> str:
    relation = _common_adjacency(private)
    if relation is None:
        return "**No total.** The releases hold for different adjacencies, whose ε do not add up."
    epsilon, delta = _sums(private)
    text = (
        "**Total of one run**, all private releases together (basic sequential composition): ε ≤"
        f" {epsilon:g}, δ ≤ {delta:g}{relation}."
    )
    if len(runs) > 1:
        epsilon, delta = _sums([entry for run in runs for entry in _private(run)])
        text += (
            f" This report stands on {len(runs)} runs; if the releases of all of them were published and they"
            f" hold the same records, the sum would be ε ≤ {epsilon:g}, δ ≤ {delta:g}."
        )
    if len(private) < len(ledger_entries(runs[0])):
        text += (
            " What has ε = ∞ is not in this sum: whoever sees it (of updates, the server) sees it without any"
            " guarantee, and so does everybody if it is published."
        )
    return text


def _private(run: Run) -> list[dict[str, Any]]:
    return [entry for entry in ledger_entries(run) if math.isfinite(entry["epsilon"])]


def _sums(entries: Sequence[dict[str, Any]]) -> tuple[float, float]:
    epsilon = math.fsum(entry["epsilon"] for entry in entries)
    return epsilon, min(1.0, math.fsum(entry["delta"] for entry in entries if math.isfinite(entry["delta"])))


def _common_adjacency(private: Sequence[dict[str, Any]]) -> str | None:
    """The relation of the total, in words; None if there is none. Empty where it is not stated."""
    names = sorted({str(entry["adjacency"]) for entry in private if entry.get("adjacency")})
    if names == ["replace_one", "replace_one_any_label"]:
        return ", for the adjacency replace_one (which replace_one_any_label implies)"
    if len(names) > 1:
        return None
    return f", for the adjacency {names[0]}" if names else ""


def _per_client(run: Run, stages: set[str]) -> list[str]:
    """Noise of every client, from the notes ``noise_std`` and ``counts`` [client][class][shard]."""
    parts = []
    for name in run.stages:
        notes = run.stages[name].notes
        noise, counts = notes.get("noise_std"), notes.get("counts")
        if name not in stages or not noise or not counts:
            continue
        rows = []
        for client, (stds, sizes) in enumerate(zip(noise, counts, strict=True)):
            row = [str(client)]
            for class_stds, class_sizes in zip(stds, sizes, strict=True):
                used = [std for std, size in zip(class_stds, class_sizes, strict=True) if size > 0]
                row.append(f"{number(min(used))} to {number(max(used))}" if used else DASH)
                row.append(f"{sum(map(int, class_sizes)):,} in {len(used)}")
            rows.append(row)
        header = ["client"]
        for label in range(len(noise[0])):
            kind = CLASS_NAMES[label] if label < len(CLASS_NAMES) else f"class {label}"
            header += [f"noise SD, {kind}", f"records in shards, {kind}"]
        parts.append(
            f"**Noise per client** (stage `{name}`), in latent units per coordinate. Smaller shards need more"
            " noise."
        )
        parts.append(table(header, rows, right=range(1, len(header))))
    return parts


def _budget(run: Run) -> list[tuple[float, float]]:
    return [(entry["epsilon"], entry["delta"]) for entry in ledger_entries(run)]


def _float(value: Any) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
