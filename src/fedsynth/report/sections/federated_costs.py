"""What federated training costs: rounds, traffic, models; and how each system decides."""

from __future__ import annotations

from collections.abc import Sequence

from fedsynth.report.federated_tables import System
from fedsynth.report.section import Material
from fedsynth.report.tables import DASH, cell, table

ROUNDS, UP, DOWN, REROUTED = (
    "rounds_to_uar",
    "bytes_up_per_round",
    "bytes_down_per_round",
    "test/rerouted_share",
)
MODELS = "num_models"
COST_CAPTION = (
    "Rounds and traffic, one client and one round, payload only. Rounds: the first whose validation UAR reaches the"
    f" target (of centralized training: epochs); {DASH}: never, or not measured. Re-routed: what the prototypes decided."
)


def cost_table(material: Material, found: Sequence[System]) -> str:
    """Rounds to the target, bytes each way, inference, share that prototypes decided, number of models."""
    stages = material.runs[0].config.get("stages") or {}
    header = [
        "system",
        f"rounds to UAR ≥ {_target(material, found)}",
        "bytes up",
        "bytes down",
        "re-routed",
        "models",
    ]
    header.append("inference")
    rows = []
    for one in found:
        records = {
            name: material.get(one.stage, one.arm, name) for name in (ROUNDS, UP, DOWN, REROUTED, MODELS)
        }
        numbers = {name: record.mean if record else None for name, record in records.items()}
        if all(value is None for value in numbers.values()):
            continue
        share, models = numbers[REROUTED], numbers[MODELS]
        row = [cell(one.label), _rounds(material, one), size(numbers[UP]), size(numbers[DOWN])]
        row += [DASH if share is None else f"{share:.1%}", DASH if models is None else f"{models:g}"]
        rows.append([*row, cell((stages.get(one.stage) or {}).get("inference"))])
    return table(header, rows, right=range(1, len(header) - 1)) if rows else ""


def _rounds(material: Material, system: System) -> str:
    """``12 (2 of 3 runs)`` where the others never reached the target."""
    record = material.get(system.stage, system.arm, ROUNDS)
    if record is None or record.mean is None:
        return DASH
    number = len(material.runs)
    return f"{record.mean:g}" + (f" ({record.seeds} of {number} runs)" if record.seeds < number else "")


def _target(material: Material, found: Sequence[System]) -> str:
    stages = material.runs[0].config.get("stages") or {}
    targets = {(stages.get(one.stage) or {}).get("target_uar") for one in found} - {None}
    return f"{targets.pop():g}" if len(targets) == 1 else "target"


def size(num_bytes: float | None) -> str:
    """``1.25 MB``, with 1 MB = 10⁶ bytes."""
    if num_bytes is None:
        return DASH
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.0f} B"
