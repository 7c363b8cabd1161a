"""Comparing finished runs: a table on the console and one self-contained HTML page.

Knows run folders and artifacts (through ``fedsynth.report``), not the code of the stages. Runs that differ in
nothing but the seed form a group and are averaged; runs of other settings, other data or another version of the
code never are.

``compare_runs`` is the entry; ``python -m fedsynth.compare`` is the same from a shell.
"""

from __future__ import annotations

from fedsynth.compare.build import CompareFiles, compare_runs
from fedsynth.compare.groups import Group, group_runs
from fedsynth.compare.results import Results, collect_results

__all__ = ["CompareFiles", "Group", "Results", "collect_results", "compare_runs", "group_runs"]
