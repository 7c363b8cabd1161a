"""Learning curves by round or epoch, and how far the clients are apart."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.compare.figures import Choice, InteractiveFigure, Point, band_line, interval_line, layout
from fedsynth.compare.groups import Group
from fedsynth.compare.results import CLIENT_ARM, Results
from fedsynth.errors import ArtifactError
from fedsynth.report import glossary

HISTORY = "history.json"
COUNTERS = ("round", "epoch")
#: One epoch of the loop over clients is one round.
FEDERATED = "fusion_encoder"
CLIENT_CURVE = re.compile(r"^clients?/(\d+)/(.+)$")

#: Quantity → per run: (x, y).
Curve = tuple[list[float], list[float]]


def learning_figure(groups: Sequence[Group]) -> tuple[InteractiveFigure | None, list[str]]:
    """One picture per stage and quantity, one line per group; and remarks on histories that cannot be read."""
    histories, remarks = _histories(groups)
    choices = []
    for stage, quantity in _quantities(histories):
        lines: list[tuple[Group, list[Curve]]] = []
        for group in groups:
            curves = [
                curve
                for run in group.runs
                if (curve := histories.get((group.tag, run.run_id, stage), {}).get(quantity)) is not None
            ]
            if curves:
                lines.append((group, curves))
        choices.append(_learning_choice(groups, lines, stage, quantity))
    if not choices:
        return None, remarks
    figure = InteractiveFigure(
        "learning",
        "Learning curves",
        "Mean over the runs of a group; band: ± 1 SD (ddof = 1). Groups that share every artifact of a stage share a"
        " line. A validation loss that rises while the training loss falls means overfitting.",
        tuple(choices),
    )
    return figure, remarks


def client_figure(groups: Sequence[Group], results: Results) -> InteractiveFigure | None:
    """Losses of single clients by round, and metrics that were measured for each client; None without any."""
    histories, _ = _histories(groups)
    choices = [*_client_metrics(groups, results), *_client_curves(groups, histories)]
    if not choices:
        return None
    return InteractiveFigure(
        "clients",
        "Per-client spread",
        "How far single clients are apart: small or one-sided clients move most. Lines are means over the runs of a"
        " group.",
        tuple(choices),
    )


def read_history(path: Path) -> dict[str, Curve]:
    """``history.json`` as quantity → (x, y), with x counted from 1 and undefined values left out.

    Raises:
        ArtifactError: The file is damaged or no list of objects.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} is no valid JSON ({error}). Delete its folder and run again.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ArtifactError(f"{path} must hold a list of objects, one per round or epoch. Run again.")
    curves: dict[str, Curve] = {}
    for index, row in enumerate(rows):
        counter = next((row[name] for name in COUNTERS if name in row), index)
        for name, value in row.items():
            if name in COUNTERS or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if math.isfinite(value):
                xs, ys = curves.setdefault(name, ([], []))
                xs.append(float(counter) + 1)
                ys.append(float(value))
    return curves


def _histories(groups: Sequence[Group]) -> tuple[dict[tuple[str, str, str], dict[str, Curve]], list[str]]:
    """(group tag, run id, stage) → its curves."""
    histories, remarks = {}, []
    for group in groups:
        for run in group.runs:
            for name, stage in run.stages.items():
                if not (stage.path / HISTORY).is_file():
                    continue
                try:
                    histories[(group.tag, run.run_id, name)] = read_history(stage.path / HISTORY)
                except ArtifactError as error:
                    remarks.append(f"Learning curve of {name} in {run.label} is left out: {error}")
    return histories, remarks


def _quantities(histories: dict[tuple[str, str, str], dict[str, Curve]]) -> list[tuple[str, str]]:
    """(stage, quantity) to draw: scores and losses, validation first, the federated encoder first."""
    found = {
        (stage, quantity): None
        for (_, _, stage), curves in histories.items()
        for quantity in curves
        if not CLIENT_CURVE.match(quantity)
    }
    return sorted(
        found, key=lambda item: (item[0] != FEDERATED, not item[1].startswith("val/"), item[1] != "val/auroc")
    )


def _learning_choice(
    groups: Sequence[Group], lines: Sequence[tuple[Group, list[Curve]]], stage: str, quantity: str
) -> Choice:
    data: list[dict[str, Any]] = []
    merged: dict[tuple[str, ...], tuple[list[Group], list[Curve]]] = {}
    for group, curves in lines:
        merged.setdefault(_artifacts(group, stage), ([], curves))[0].append(group)
    for sharing, curves in merged.values():
        name = (
            sharing[0].name
            if len(sharing) == 1
            else f"{', '.join(group.tag for group in sharing)} (the same)"
        )
        x, mean, std = _mean_curve(curves)
        data += band_line(x, mean, std, name, _index(groups, sharing[0]))
    unit = "rounds" if stage.startswith(FEDERATED) else "epochs"
    title = f"{glossary.stage_title(stage)}: {quantity}"
    return Choice(
        title, data, layout(f"{unit} completed", quantity, hovermode="x unified", xaxis=_steps(data))
    )


def _steps(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whole numbers on the axis, every one of them where there is room."""
    longest = max((x for trace in data for x in trace["x"]), default=0)
    return {"dtick": 1} if longest <= 20 else {}


def _index(groups: Sequence[Group], group: Group) -> int:
    return [other.tag for other in groups].index(group.tag)


def _artifacts(group: Group, stage: str) -> tuple[str, ...]:
    return tuple(run.stages[stage].key for run in group.runs if stage in run.stages)


def _mean_curve(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float] | None]:
    """Mean and SD (ddof = 1) at every x that all curves reach; the longest curve's own x where only it does."""
    values: dict[float, list[float]] = {}
    for xs, ys in curves:
        for x, y in zip(xs, ys, strict=True):
            values.setdefault(x, []).append(y)
    xs = sorted(values)
    mean = [float(np.mean(values[x])) for x in xs]
    if len(curves) < 2:
        return xs, mean, None
    return xs, mean, [float(np.std(values[x], ddof=1)) if len(values[x]) > 1 else 0.0 for x in xs]


def _client_curves(
    groups: Sequence[Group], histories: dict[tuple[str, str, str], dict[str, Curve]]
) -> list[Choice]:
    """One picture per stage, quantity and group; lines are clients. Groups that share artifacts share a picture."""
    pictures: dict[tuple[str, str, tuple[str, ...]], tuple[list[Group], dict[int, list[Curve]]]] = {}
    for group in groups:
        found: dict[tuple[str, str], dict[int, list[Curve]]] = {}
        for run in group.runs:
            for stage in run.stages:
                for name, curve in histories.get((group.tag, run.run_id, stage), {}).items():
                    if match := CLIENT_CURVE.match(name):
                        clients = found.setdefault((stage, match[2]), {})
                        clients.setdefault(int(match[1]), []).append(curve)
        for (stage, quantity), clients in found.items():
            key = (stage, quantity, _artifacts(group, stage))
            pictures.setdefault(key, ([], clients))[0].append(group)
    choices = []
    for (stage, quantity, _), (sharing, clients) in pictures.items():
        data: list[dict[str, Any]] = []
        for client in sorted(clients):
            x, mean, std = _mean_curve(clients[client])
            data += band_line(x, mean, std, f"client {client}", client)
        who = sharing[0].name if len(sharing) == 1 else ", ".join(group.tag for group in sharing)
        words = quantity.replace("_", " ")
        label = f"{glossary.stage_title(stage)}: {words}, {who}"
        choices.append(
            Choice(label, data, layout("rounds completed", words, hovermode="x unified", xaxis=_steps(data)))
        )
    return choices


def _client_metrics(groups: Sequence[Group], results: Results) -> list[Choice]:
    """Metrics whose arm is a client, as points over the client's number, one color per group."""
    pictures: dict[tuple[str, str], dict[int, list[Point]]] = {}
    for row in results.rows:
        match = CLIENT_ARM.match(row.arm)
        if match is None:
            continue
        for index, record in enumerate(row.cells):
            if record is not None and record.mean is not None:
                point = Point(float(match[1]), record.mean, record.ci_low, record.ci_high)
                pictures.setdefault((row.stage, row.metric), {}).setdefault(index, []).append(point)
    choices = []
    for (stage, metric), by_group in pictures.items():
        data = [interval_line(p, groups[index].name, index, lines=False) for index, p in by_group.items()]
        title = glossary.metric_title(metric)
        axis = {"dtick": 1} if max(len(p) for p in by_group.values()) <= 20 else {}
        label = f"{glossary.stage_title(stage)}: {title} of each client"
        choices.append(Choice(label, data, layout("client", title, xaxis=axis)))
    return choices
