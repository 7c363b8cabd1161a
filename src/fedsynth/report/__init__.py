"""From finished runs to one report: records, figures, Markdown, HTML, JSON.

Knows run folders and artifacts, not the code of the stages.

``build_report`` is the entry; ``python -m fedsynth.report`` is the same from a shell.
"""

from __future__ import annotations

from fedsynth.report.build import ReportFiles, build_report
from fedsynth.report.records import ReportRecord, collect_records
from fedsynth.report.runs import Run, find_runs, load_run

__all__ = ["ReportFiles", "ReportRecord", "Run", "build_report", "collect_records", "find_runs", "load_run"]
