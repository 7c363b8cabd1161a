"""Which speakers are held where: the section of the report on clients and splits of a speech corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.report.tables import cell, table

LABEL_RULES = {
    "phq_binary": "as marked in the split files (`PHQ_Binary`)",
    "phq8ge10": "a PHQ-8 total of 10 or more",
}


def speech_partition(report: Mapping[str, Any]) -> str:
    """Tables of participants and segments by client and split, from the notes of ``speech_clients``."""
    header = ["not depressed", "depressed", "segments, not depressed", "segments, depressed"]
    clients = [[str(index), *_counts(client)] for index, client in enumerate(report["clients"])]
    splits = [
        [name, *_counts(split), _range(split["segments_per_participant"])]
        for name, split in report["splits"].items()
    ]
    return "\n\n".join(
        [
            "## Clients and splits",
            "Participants, and the segments cut from their interviews.",
            table(["client", *header], clients, right=range(1, 5)),
            table(["split", *header, "segments of a participant"], splits, right=range(1, 6)),
            _remarks(report),
        ]
    )


def _counts(held: Mapping[str, Any]) -> list[str]:
    return [
        f"{int(held[f'{unit}_by_class'].get(label, 0)):,}"
        for unit in ("participants", "segments")
        for label in ("0", "1")
    ]


def _range(numbers: Mapping[str, float]) -> str:
    return f"{numbers['min']:g} to {numbers['max']:g}, median {numbers['median']:g}"


def _remarks(report: Mapping[str, Any]) -> str:
    rule, other = report["label_rule"], report["label_rules_disagree"]
    excluded = report.get("excluded") or []
    lines = [
        f"- Depressed: {LABEL_RULES.get(rule, rule)}. The other rule labels {other} participants differently.",
        f"- Left out by `data.exclude_participants`: {cell(excluded) if excluded else 'nobody'}.",
        *(f"- {warning}" for warning in report["warnings"]),
        "- Every participant is in one split and at one client.",
    ]
    return "\n".join(lines)
