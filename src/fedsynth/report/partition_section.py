"""Who holds what: the section of the report on clients, splits and the reuse of beats."""

from __future__ import annotations

from typing import Any

from fedsynth.report.runs import Run
from fedsynth.report.speech_partition import speech_partition
from fedsynth.report.tables import cell, table


def partition_section(run: Run) -> str:
    """Tables of clients and splits from the first stage that made clients, or an empty text without one."""
    stage = next(
        (stage for stage in run.stages.values() if stage.kind in ("clients", "speech_clients")), None
    )
    report = (stage.notes if stage else {}).get("report")
    if not report:
        return ""
    if stage is not None and stage.kind == "speech_clients":
        return speech_partition(report)
    return "\n\n".join(["## Clients and splits", _clients(report), _splits(report), _remarks(report)])


def _by_class(counts: dict[str, int]) -> list[str]:
    return [f"{int(counts.get(label, 0)):,}" for label in ("0", "1")]


def _clients(report: dict[str, Any]) -> str:
    header = [
        "client",
        "X-rays, negative",
        "X-rays, positive",
        "beats, negative",
        "beats, positive",
        "ECG records",
    ]
    rows = [
        [
            str(index),
            *_by_class(client["images_by_class"]),
            *_by_class(client["beats_by_class"]),
            cell(client["records"]),
        ]
        for index, client in enumerate(report["clients"])
    ]
    return table(header, rows, right=range(1, 5))


def _splits(report: dict[str, Any]) -> str:
    header = ["split", "pairs, negative", "pairs, positive", "beats, negative", "beats, positive"]
    header += ["most uses of a beat", "most pairs with one ECG record", "ECG records"]
    rows = [
        [
            name,
            *_by_class(split["images_by_class"]),
            *_by_class(split["beats_by_class"]),
            str(split["beat_uses"]["max"]),
            str(split["record_uses"]["max"]),
            cell(split["records"]),
        ]
        for name, split in report["splits"].items()
    ]
    return table(header, rows, right=range(1, 7))


def _remarks(report: dict[str, Any]) -> str:
    dropped = ", ".join(f"{reason}: {count:,}" for reason, count in report["dropped_beats"].items())
    borrowed = report["borrowed_beats"]
    lines = [
        f"- Annotations that gave no beat: {dropped or 'none'}.",
        f"- Clients that borrowed beats of a class they lack: {cell(borrowed) if borrowed else 'none'}.",
        "- A pair is one X-ray with one beat of the same class from another person, by construction.",
    ]
    return "\n".join(lines)
