"""What a report says, before it is text: shared by Markdown, HTML, JSON, console."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedsynth.report.branches import compares_branches
from fedsynth.report.gallery import Gallery, ReportFigure
from fedsynth.report.glossary import FIRST_LOOK_METRICS, is_headline, metric_key
from fedsynth.report.privacy_scope import ledger_entries, uncovered
from fedsynth.report.pso_systems import emulated_arms
from fedsynth.report.records import ReportRecord
from fedsynth.report.runs import Run
from fedsynth.report.section import Section


@dataclass(frozen=True)
class ReportContent:
    """Runs, what was measured, what was drawn, sections of results.

    Attributes:
        mixed: Differences that ``allow_mixed`` let through.
        left_out: A line for each section that lacks a file it needs.
    """

    runs: tuple[Run, ...]
    records: tuple[ReportRecord, ...]
    gallery: Gallery
    mixed: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def figures(self) -> tuple[ReportFigure, ...]:
        """Every figure of the report: the gallery's, then those of the sections."""
        return (*self.gallery.figures, *(item for section in self.sections for item in section.figures))

    @property
    def simulated(self) -> bool:
        """One simulated run or artifact is enough to mark the whole report."""
        return any(run.is_simulated for run in self.runs)

    @property
    def title(self) -> str:
        return ("SIMULATED — " if self.simulated else "") + f"Report: {self.runs[0].experiment}"

    @cached_property
    def emulated(self) -> frozenset[str]:
        """Arms whose images were chosen as the released code does it: they may hold flagged candidates."""
        return emulated_arms(self.runs)

    @cached_property
    def has_paper(self) -> bool:
        return any(record.paper is not None for record in self.records)

    @cached_property
    def headline(self) -> list[ReportRecord]:
        """Records of the headline table: by metric name, else those with a published value, else all."""
        named = [record for record in self.records if is_headline(record.stage, record.arm, record.metric)]
        if compares_branches(record.stage for record in self.records):
            # The sections compare everything; here only what a first look needs.
            named = [record for record in named if metric_key(record.metric) in FIRST_LOOK_METRICS]
        return named or [record for record in self.records if record.paper is not None] or list(self.records)

    def caption(self, text: str) -> str:
        """A table's caption, marked when the data is simulated."""
        return f"**SIMULATED.** {text}" if self.simulated else f"*{text}*"

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values (NaN becomes null, infinity "inf")."""
        value = {
            "title": self.title,
            "simulated": self.simulated,
            "experiment": self.runs[0].experiment,
            "paper": None if self.simulated else _paper_title(self.runs[0]),
            "records": [record.to_dict() for record in self.records],
            "runs": [_run_summary(run) for run in self.runs],
            "privacy": {
                run.run_id: {
                    "ledger": ledger_entries(run),
                    "uncovered": [{"stage": stage, "what": what} for stage, what in uncovered(run)],
                }
                for run in self.runs
            },
            "differences": list(self.mixed),
            "figures": [item.name for item in self.figures],
            "left_out": [*self.gallery.left_out, *self.left_out],
        }
        plain = plain_json(value)
        assert isinstance(plain, dict)
        return plain


def plain_json(value: Any) -> Any:
    """The value with NaN as null and infinities as "inf" / "-inf": JSON has neither."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def _run_summary(run: Run) -> dict[str, Any]:
    names = ("command", "created", "finished", "seconds", "environment")
    return {
        "run_id": run.run_id,
        "seed": run.seed,
        "commit": run.commit,
        "simulated": run.is_simulated,
        **{name: run.info.get(name) for name in names},
        "stages": {
            name: {
                "kind": stage.kind,
                "key": stage.key,
                "status": stage.status,
                "seconds": stage.seconds,
                "sensitivity": stage.sensitivity,
                "side": stage.side,
            }
            for name, stage in run.stages.items()
        },
        "stages_not_run": run.stages_not_run(),
        "data": [item for stage in run.stages.values() for item in (stage.manifest or {}).get("data") or []],
    }


def _paper_title(run: Run) -> dict[str, Any] | None:
    paper = run.config.get("paper") or {}
    return {"title": paper.get("title"), "reference": paper.get("reference")} if paper else None
