"""How the runs were made: commands, environment, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsynth.report.content import ReportContent
from fedsynth.report.tables import DASH, cell, duration, table


def how_it_was_run(content: ReportContent) -> str:
    names = dict.fromkeys(key for run in content.runs for key in run.info.get("environment") or {})
    rows = [["created"] + [cell(run.info.get("created")) for run in content.runs]]
    rows.append(["finished"] + [cell(run.info.get("finished")) for run in content.runs])
    rows.append(["time"] + [duration(run.info.get("seconds")) for run in content.runs])
    rows.append(["commit"] + [cell(run.commit) for run in content.runs])
    for name in names:
        rows.append(
            [cell(name)] + [cell((run.info.get("environment") or {}).get(name)) for run in content.runs]
        )
    commands = "\n".join(str(run.info.get("command") or "") for run in content.runs)
    return "\n\n".join(
        [
            "## How it was run",
            f"```text\n{commands}\n```",
            table(["", *[f"seed {run.seed}" for run in content.runs]], rows),
            "Results are repeatable bit for bit with the same commit, package versions, device and thread"
            " count; another device or thread count changes the order of floating-point sums.",
        ]
    )


def seeds_section(content: ReportContent) -> str:
    found: dict[str, list[str]] = {}
    for index, run in enumerate(content.runs):
        for path, value in _seed_settings(run.config, ""):
            found.setdefault(path, [DASH] * len(content.runs))[index] = cell(value)
    rows = [["**seed** (the run's)", *[str(run.seed) for run in content.runs]]]
    rows += [[f"`{path}`", *values] for path, values in found.items() if path != "seed"]
    text = (
        "`seed` moves everything that is chance in training the encoder and the generator: weights, batches,"
        " privacy noise, sampling. TSTR classifiers have seeds of their own (`evaluation.classifier_seeds`). A"
        " split seed, such as `data.split_seed`, decides which records are in which split and client; it"
        " stays the same over the runs of one experiment, so that their spread is the spread of the method"
        " and not that of the split."
    )
    return "\n\n".join(["## Seeds", text, table(["setting", *[run.run_id for run in content.runs]], rows)])


def _seed_settings(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, dict):
            yield from _seed_settings(item, path)
        elif str(key).endswith(("seed", "seeds")) and item is not None:
            yield path, item
