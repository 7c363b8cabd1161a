"""The section on speakers says what the data report holds."""

from pathlib import Path
from typing import Any

from fedsynth.report.partition_section import partition_section
from fedsynth.report.runs import Run, StageResult

REPORT: dict[str, Any] = {
    "label_rule": "phq_binary",
    "label_rules_disagree": 20,
    "clients": [
        {"participants_by_class": {"0": 3, "1": 6}, "segments_by_class": {"0": 1100, "1": 24}},
        {"participants_by_class": {"0": 4}, "segments_by_class": {"0": 9}},
    ],
    "splits": {
        "test": {
            "participants_by_class": {"0": 39, "1": 17},
            "segments_by_class": {"0": 154, "1": 67},
            "segments_per_participant": {"min": 3, "median": 4.5, "max": 5},
        }
    },
    "warnings": ["1 folder belongs to nobody: 999_P"],
    "excluded": [301, 305],
}


def text(report: dict[str, Any]) -> str:
    manifest = {"notes": {"report": report}}
    stage = StageResult(
        "clients", "speech_clients", "k", Path("p"), "computed", 1.0, "private", "client", manifest
    )
    return partition_section(Run(Path("r"), {"experiment": "e", "run_id": "i"}, {"clients": stage}))


def test_every_count_is_in_its_row() -> None:
    rows = [line for line in text(REPORT).splitlines() if line.startswith("| ")]
    assert "| 0 | 3 | 6 | 1,100 | 24 |" in rows
    assert "| 1 | 4 | 0 | 9 | 0 |" in rows
    assert "| test | 39 | 17 | 154 | 67 | 3 to 5, median 4.5 |" in rows


def test_rule_warnings_and_exclusions_are_said() -> None:
    said = text(REPORT)
    assert "`PHQ_Binary`" in said
    assert "The other rule labels 20 participants differently" in said
    assert "999_P" in said
    assert "301, 305" in said
    assert "nobody" in text({**REPORT, "excluded": []})
