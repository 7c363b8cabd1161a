"""What the tables of federated systems measure, in the words of the stages, and what must not be read into them."""

from __future__ import annotations

import math

from fedsynth.report.federated_tables import KIND
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.federated_setting import is_speech
from fedsynth.report.sections.prototype_leakage import KIND as LEAKAGE
from fedsynth.report.sections.system_contrasts import KIND as CONTRAST
from fedsynth.report.tables import cell, table

#: Participants of E-DAIC: members (train) and non-members (test) of the paper's attack.
EDAIC_MEMBERS, EDAIC_NON_MEMBERS = 163, 56


def definitions_section(material: Material) -> Section | None:
    """Definitions from the notes of the stages, then caveats; None without a stage that scored a system."""
    if not material.names(KIND):
        return None
    parts = [
        "**Privacy score** ρ = 1 − 2 |attack AUROC − 0.5|; **privacy-performance score** PPS = 2 UAR ρ / (UAR + ρ), the"
        " harmonic mean (FedMPA).",
        *(text for kind in (KIND, CONTRAST, LEAKAGE) if (text := _definitions(material, kind))),
        "What must not be read into them:",
        "\n".join(f"- {line}" for line in _caveats(material)),
    ]
    return Section("What the federated tables measure", "\n\n".join(parts))


def _definitions(material: Material, kind: str) -> str:
    """Every definition that stages of the kind noted, each once."""
    found: dict[str, str] = {}
    for stage in (stage for run in material.runs for stage in run.of_kind(kind)):
        definitions = stage.notes.get("definitions")
        for name, text in (definitions if isinstance(definitions, dict) else {}).items():
            found.setdefault(str(name), str(text))
    rows = [[f"`{cell(name)}`", cell(text)] for name, text in found.items()]
    return table(["name", "what it is"], rows) if rows else ""


def chance_spread(members: int, non_members: int) -> float:
    """Standard error of an AUROC of scores that tell nothing: √((m + n + 1) / (12 m n)), the Mann–Whitney variance.

    Raises:
        ValueError: Without a member or a non-member there is no AUROC.
    """
    if members < 1 or non_members < 1:
        raise ValueError(f"members and non_members must be at least 1, got {members} and {non_members}.")
    return math.sqrt((members + non_members + 1) / (12 * members * non_members))


def _own_spread(material: Material) -> str:
    """The same for the participants of these runs; empty where no stage noted how many there are."""
    for run in material.runs:
        for stage in run.of_kind(KIND):
            number = stage.notes.get("num_participants")
            if isinstance(number, dict) and number.get("train") and number.get("test"):
                members, non_members = int(number["train"]), int(number["test"])
                if (members, non_members) == (EDAIC_MEMBERS, EDAIC_NON_MEMBERS):
                    return ""
                spread = chance_spread(members, non_members)
                return f" Here, with {members:,} and {non_members:,}, the standard error is {spread:.3f}."
    return ""


def _caveats(material: Material) -> list[str]:
    spread = chance_spread(EDAIC_MEMBERS, EDAIC_NON_MEMBERS)
    # E|Z| of a normal Z with this SD, doubled as ρ doubles the distance from 0.5.
    mean_score = 1 - 2 * spread * math.sqrt(2 / math.pi)
    lines = [
        "ρ is symmetric: an attack AUROC of 0.42 counts as leaking as much as 0.58, although an attacker who does not"
        " know the direction gains nothing from the former.",
        f"An AUROC is uncertain: with {EDAIC_MEMBERS} members and {EDAIC_NON_MEMBERS} non-members, as in E-DAIC, scores"
        f" that tell nothing have a standard error of {spread:.3f}, and ρ is then {mean_score:.2f} on average, not 1."
        f"{_own_spread(material)} Rankings by ρ within such distances are mostly noise; read the intervals.",
        "Members are training records and non-members test records, so the attack also measures how the splits differ."
        " Validation records as second non-members show how much.",
        "An attack that finds nothing is no guarantee: only what the privacy ledger covers has one.",
    ]
    if is_speech(material):
        lines.append(
            "Participants are the unit: segments of one interview are not independent. The paper does not name its unit;"
            " its printed accuracy and UAR fit no confusion matrix on 17 depressed and 39 other test participants for"
            " three of six systems (Centralized, FedProx, FedAvg), so it counted something else or averaged runs."
        )
    return lines
