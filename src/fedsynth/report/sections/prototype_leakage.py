"""What the server can read from the prototypes that clients send, with and without noise."""

from __future__ import annotations

from fedsynth.report.federated_figures import leakage_bars
from fedsynth.report.federated_tables import System, bounds, systems, three_digits
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.records import ReportRecord
from fedsynth.report.result_figures import Estimate
from fedsynth.report.section import Material, Row, Section
from fedsynth.report.sections.encoders import estimate
from fedsynth.report.system_names import base_rank
from fedsynth.report.tables import DASH, cell, table

KIND = "prototype_attack"
EXACT = "exact_match_"
#: Attack → its metric below a modality, and what guessing reaches: a metric or a number.
ATTACKS: dict[str, tuple[str, str | float]] = {
    "nearest record is the client's": ("nearest_attribution_top1", "base_rate"),
    "record attributed to its client": ("client_attribution", "majority_rate"),
    "membership, other clients": ("attack_auroc_other_clients", 0.5),
    "membership, validation": ("attack_auroc_val", 0.5),
}


def leakage_section(material: Material) -> Section | None:
    """A table of attacks by system and modality, each beside what guessing reaches; bars with intervals."""
    found = sorted(systems(material, KIND), key=lambda system: base_rank(system.arm))
    rows = [_row(material, one, modality) for one in found for modality in _modalities(material, one)]
    if not rows:
        return None
    text = [
        "The attacker has every prototype as the clients sent it, the models they had (under FedProto more than the"
        " server sees) and candidate records. *Nearest record*: is the candidate nearest to a prototype a record of the"
        " client that sent it; *attributed*: is a training record nearest to the prototype of its own client;"
        " *membership*: AUROC of the distance to the prototype, the client's records against those of other clients or"
        " validation records. In brackets: what guessing reaches (for AUROC 0.5), below it the 95 % interval.",
        "The noise covers prototypes only. Where a client also sends weights, those have no guarantee and are not"
        " attacked here.",
        material.caption("Attacks on the prototypes of the chosen round."),
        table(["system", "modality", *ATTACKS], [line for row in rows for line in row], right=range(2, 6)),
    ]
    matches = _exact_matches(material, found)
    if matches:
        text += [
            material.caption(
                "Share of prototypes that are the embedding of a record, by the number of records behind them: the mean"
                " of one record is that record."
            ),
            matches,
        ]
    figure = _figure(material, found)
    return Section("Leakage of prototypes", "\n\n".join(text), (figure,) if figure else ())


def _exact_matches(material: Material, found: list[System]) -> str:
    """By system and modality; empty where no stage looked."""
    buckets = [name for record in material.records if (name := _bucket(record))]
    columns = sorted(dict.fromkeys(buckets), key=lambda name: int(name.rstrip("+").split("-")[0]))
    rows = []
    for one in found:
        for modality in _modalities(material, one):
            shares = [material.get(one.stage, one.arm, f"{modality}/{EXACT}{name}") for name in columns]
            if any(shares):
                values = [DASH if share is None else three_digits(share.mean, share.std) for share in shares]
                rows.append([cell(one.label), modality, *values])
    header = ["system", "modality", *(f"{name} record{'' if name == '1' else 's'}" for name in columns)]
    return table(header, rows, right=range(2, len(header))) if rows else ""


def _bucket(record: ReportRecord) -> str:
    """``2-4`` of ``audio/exact_match_2-4``; empty for any other metric."""
    _, found, bucket = record.metric.partition(f"/{EXACT}")
    return bucket if found else ""


def _modalities(material: Material, system: System) -> list[str]:
    wanted = tuple(f"/{metric}" for metric, _ in ATTACKS.values())
    names = [
        record.metric.removesuffix(ending)
        for record in material.records
        if (record.stage, record.arm) == (system.stage, system.arm) and record.mean is not None
        for ending in wanted
        if record.metric.endswith(ending)
    ]
    return list(dict.fromkeys(names))


def _row(material: Material, system: System, modality: str) -> list[list[str]]:
    """Values, and below them the intervals."""
    values, intervals = [cell(system.label), modality], ["95 % CI", ""]
    for metric, guess in ATTACKS.values():
        record = material.get(system.stage, system.arm, f"{modality}/{metric}")
        if record is None or record.mean is None:
            values.append(DASH)
        else:
            chance = _guess(material, system, modality, guess)
            beside = f" ({three_digits(chance)})" if chance is not None and isinstance(guess, str) else ""
            values.append(f"**{three_digits(record.mean, record.std)}**{beside}")
        intervals.append(bounds(record))
    return [values, intervals]


def _guess(material: Material, system: System, modality: str, guess: str | float) -> float | None:
    if isinstance(guess, float):
        return guess
    record: ReportRecord | None = material.get(system.stage, system.arm, f"{modality}/{guess}")
    return record.mean if record else None


def _figure(material: Material, found: list[System]) -> ReportFigure | None:
    panels: dict[str, dict[str, dict[str, Estimate]]] = {}
    references: dict[str, dict[str, float]] = {}
    for title, (metric, guess) in list(ATTACKS.items())[:3]:
        for one in found:
            for modality in _modalities(material, one):
                name = f"{modality}/{metric}"
                record = material.get(one.stage, one.arm, name)
                if record is None or record.mean is None:
                    continue
                item = estimate(material, Row(one.label, one.stage, one.arm), name)
                panels.setdefault(title, {}).setdefault(one.label, {})[modality] = item
                chance = _guess(material, one, modality, guess)
                if chance is not None:
                    references.setdefault(title, {}).setdefault(modality, chance)
    if not panels:
        return None
    return ReportFigure(
        "prototype_leakage",
        "Leakage of prototypes",
        "Attacks by the server on what clients send, by modality. Dashed: what guessing reaches; vertical lines: 95 %"
        " intervals. A bar at the dashed line: the attack finds nothing.",
        leakage_bars(
            panels, references=references, title="Leakage of prototypes", simulated=material.simulated
        ),
    )
