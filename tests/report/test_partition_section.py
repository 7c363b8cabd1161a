"""The section on clients and splits says what the data report holds."""

from pathlib import Path
from typing import Any

from fedsynth.report.partition_section import partition_section
from fedsynth.report.runs import Run, StageResult

REPORT: dict[str, Any] = {
    "clients": [
        {"images_by_class": {"0": 3, "1": 1412}, "beats_by_class": {"0": 40, "1": 50}, "records": [100, 201]},
        {"images_by_class": {"1": 7}, "beats_by_class": {"0": 1, "1": 2}, "records": [103]},
    ],
    "splits": {
        "train": {
            "images_by_class": {"0": 3, "1": 1419},
            "beats_by_class": {"0": 41, "1": 52},
            "beat_uses": {"max": 9, "mean": 1.5},
            "record_uses": {"max": 456, "mean": 20.0},
            "records": [100, 103, 201],
        }
    },
    "dropped_beats": {"window leaves the record": 45},
    "borrowed_beats": [],
}


def run_with(notes: dict[str, Any]) -> Run:
    manifest = {"notes": notes}
    stage = StageResult("clients", "clients", "k", Path("p"), "computed", 1.0, "private", "client", manifest)
    return Run(Path("r"), {"experiment": "e", "run_id": "i"}, {"clients": stage})


def test_every_count_is_in_its_row() -> None:
    rows = [
        line for line in partition_section(run_with({"report": REPORT})).splitlines() if line.startswith("| ")
    ]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert ["0", "3", "1,412", "40", "50", "100, 201"] in cells
    assert ["1", "0", "7", "1", "2", "103"] in cells
    assert ["train", "3", "1,419", "41", "52", "9", "456", "100, 103, 201"] in cells


def test_dropped_and_borrowed_beats_are_named() -> None:
    text = partition_section(run_with({"report": {**REPORT, "borrowed_beats": [{"client": 1, "class": 0}]}}))
    assert "window leaves the record: 45" in text
    assert "client: 1" in text


def test_a_run_without_clients_has_no_section() -> None:
    assert partition_section(run_with({})) == ""
