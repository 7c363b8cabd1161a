"""Runs that repeat each other with other seeds form a group; everything else keeps them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsynth.compare.factors import Factor, SweepAxis, find_factors, flat_settings, shown, sweep_axis
from fedsynth.errors import ConfigError
from fedsynth.report.compatibility import differences
from fedsynth.report.runs import Run

#: A label names so many settings at most.
MAX_NAMED = 3


@dataclass(frozen=True)
class Group:
    """Repetitions of one experiment: the same settings, data and code, other seeds."""

    tag: str  # A, B, … on the page
    label: str
    runs: tuple[Run, ...]  # by seed
    marks: tuple[str, ...] = ()  # what forbids to take its numbers as they are

    @property
    def experiment(self) -> str:
        return self.runs[0].experiment

    @property
    def is_simulated(self) -> bool:
        return any(run.is_simulated for run in self.runs)

    @property
    def settings(self) -> dict[str, Any]:
        return flat_settings(self.runs[0].config)

    @property
    def name(self) -> str:
        """Tag and label, marked when the data is simulated."""
        mark = "SIMULATED " if self.is_simulated else ""
        return f"{mark}{self.tag}: {self.label}"


@dataclass(frozen=True)
class Grouping:
    """The groups in reading order, what tells them apart, and remarks on runs that are in none."""

    groups: tuple[Group, ...]
    factors: tuple[Factor, ...]
    axis: SweepAxis | None
    remarks: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def is_simulated(self) -> bool:
        return any(group.is_simulated for group in self.groups)


def group_runs(runs: Sequence[Run]) -> Grouping:
    """Sort runs into groups of repetitions.

    Two runs are repetitions when their configs differ in nothing but seeds and hardware, and the artifacts of the
    stages both have come from the same code and data (``report.compatibility``). Of two runs with one seed the
    finished, then the newer one counts; the other is left out with a remark: it repeats the same numbers.

    Raises:
        ConfigError: No runs.
    """
    if not runs:
        raise ConfigError("No runs given: a comparison needs at least one run. Name some: runs=a,b.")
    newest_first = sorted(
        runs, key=lambda run: (str(run.info.get("created") or ""), run.run_id), reverse=True
    )
    gathered: list[list[Run]] = []
    remarks = []
    for run in sorted(newest_first, key=lambda run: not run.is_finished):
        members = next((members for members in gathered if _is_repetition(members, run)), None)
        if members is None:
            gathered.append([run])
        elif any(member.seed == run.seed for member in members):
            same = next(member for member in members if member.seed == run.seed)
            remarks.append(f"{run.label} is left out: {same.run_id} has the same seed and settings.")
        else:
            members.append(run)
    ordered = sorted(
        gathered, key=lambda members: min((str(run.info.get("created") or ""), run.run_id) for run in members)
    )
    return _named([tuple(sorted(members, key=lambda run: run.seed)) for members in ordered], tuple(remarks))


def unfinished(run: Run) -> list[str]:
    """Stages the config asks for that the run never reached; [] for a finished run, whatever it was limited to."""
    if run.is_finished:
        return []
    return [name for name in run.stages_not_run() if name not in run.stages]


def deleted_artifacts(run: Run) -> list[str]:
    """Stages that were run, but whose artifact folder is gone: their numbers are lost."""
    return [name for name, stage in run.stages.items() if stage.manifest is None]


def _is_repetition(members: Sequence[Run], run: Run) -> bool:
    if flat_settings(members[0].config) != flat_settings(run.config):
        return False
    return all(not differences([member, run]) for member in members)


def _named(members: list[tuple[Run, ...]], remarks: tuple[str, ...]) -> Grouping:
    """Order along the sweep if there is one, tags, labels and marks."""
    commands = " ".join(str(run.info.get("command") or "") for runs in members for run in runs)

    def factors_of(items: list[tuple[Run, ...]]) -> list[Factor]:
        return find_factors([flat_settings(runs[0].config) for runs in items], commands)

    factors = factors_of(members)
    axis = sweep_axis(factors)
    if axis is not None:
        order = axis.order
        members = [members[index] for index in sorted(range(len(members)), key=lambda index: order[index])]
        factors = factors_of(members)
        axis = sweep_axis(factors)
    labels = _labels(members, commands)
    groups = [
        Group(tag=_tag(index), label=label, runs=runs)
        for index, (label, runs) in enumerate(zip(labels, members, strict=True))
    ]
    marked = [replace(group, marks=_marks(groups[0], group)) for group in groups]
    return Grouping(tuple(marked), tuple(factors), axis, remarks)


def _labels(members: Sequence[tuple[Run, ...]], commands: str) -> list[str]:
    """The experiment where there are several; then up to three settings that tell the groups of one apart."""
    several = len({runs[0].experiment for runs in members}) > 1
    labels = [""] * len(members)
    for experiment in dict.fromkeys(runs[0].experiment for runs in members):
        own = [index for index, runs in enumerate(members) if runs[0].experiment == experiment]
        factors = find_factors([flat_settings(members[index][0].config) for index in own], commands)
        told = [factor for factor in factors if not factor.is_stage]
        for place, index in enumerate(own):
            parts = [experiment] if several or not told else []
            parts += [f"{factor.name} = {shown(factor.values[place])}" for factor in told[:MAX_NAMED]]
            labels[index] = ", ".join(parts) + (", …" if len(told) > MAX_NAMED else "")
    return labels


def _marks(reference: Group, group: Group) -> tuple[str, ...]:
    """Why the numbers of a group must be read with care: other code or data than the first, unfinished runs."""
    marks = []
    codes = _differing(_codes(reference), _codes(group))
    if codes:
        marks.append(f"different code than {reference.tag}: {_listed(codes)}")
    elif not (_codes(reference) and _codes(group)) and reference.runs[0].commit != group.runs[0].commit:
        marks.append(f"different commit than {reference.tag}: {group.runs[0].commit}")
    data = _differing(_data(reference), _data(group))
    if data:
        marks.append(f"different data than {reference.tag}: {_listed(data)}")
    if group.is_simulated:
        marks.append("SIMULATED data")
    for run in group.runs:
        if not run.is_finished:
            marks.append(
                f"unfinished: {run.label}, missing: {_listed(unfinished(run)) or 'nothing but its end'}"
            )
        if gone := deleted_artifacts(run):
            marks.append(f"artifacts deleted: {run.label}, {_listed(gone)}")
    return tuple(marks)


def _codes(group: Group) -> dict[str, str]:
    """Stage of a kind → digest of its code."""
    return {
        f"{name} ({stage.kind})" if name != stage.kind else name: str(code)
        for run in group.runs
        for name, stage in run.stages.items()
        if (code := ((stage.manifest or {}).get("key_parts") or {}).get("code"))
    }


def _data(group: Group) -> dict[str, str]:
    return {
        f"{item.get('name')} {item.get('file') or ''}".strip(): str(item.get("sha256"))
        for run in group.runs
        for stage in run.stages.values()
        for item in (stage.manifest or {}).get("data") or []
    }


def _differing(first: dict[str, str], second: dict[str, str]) -> list[str]:
    return [key for key, value in second.items() if key in first and first[key] != value]


def _listed(names: Sequence[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _tag(index: int) -> str:
    """A … Z, AA, AB, …"""
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else _tag(index // 26 - 1) + letter
