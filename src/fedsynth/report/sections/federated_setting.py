"""On what data and schedule federated systems were trained, and what that means for the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsynth.report.federated_tables import PAPER_HEADING, System
from fedsynth.report.section import OUTSIDE_NOTE, Material
from fedsynth.report.tables import cell

#: Settings of a schedule: path below ``stages.<encoder>`` → how it is told.
SCHEDULE = {
    "trainer.max_epochs": "{:g} rounds",
    "local_epochs": "{:g} local epochs each",
    "batch_size": "batch size {:g}",
    "learning_rate": "learning rate {:g}",
}
BACKBONE = "the network is ours, since the paper's (ALiDeR) is not public"


def comparability(material: Material, *, has_printed: bool) -> str:
    """One paragraph on whether the paper's numbers may be compared with these; empty where none are shown."""
    if not has_printed:
        return ""
    text = f"Columns *{PAPER_HEADING}*: as printed in the paper, measured on E-DAIC. "
    if material.simulated:
        what = "a simulated speech corpus" if is_speech(material) else "simulated X-rays and ECGs"
        return text + (
            f"**They are not comparable with ours**: this run stands on {what}, and {BACKBONE}. A simulated run"
            " reproduces nothing; no difference to the paper is computed."
        )
    if not is_speech(material):
        return text + (
            "**They are not comparable with ours**: this run classifies X-rays and ECGs, another task, with another"
            " network. No difference to the paper is computed."
        )
    if not any(stage.startswith("score_") for stage, _, _ in material.published):
        return text + (
            "**They are not comparable with ours**: the data is E-DAIC, but the settings are not the paper's (listed"
            f" under *How to read it*), and {BACKBONE}. No difference to the paper is computed."
        )
    return text + f"Data and schedule are the paper's, but {BACKBONE}. {OUTSIDE_NOTE}."


def is_speech(material: Material) -> bool:
    """Whether the clients hold interviews (E-DAIC or its simulation) rather than X-rays and ECGs."""
    stages = material.runs[0].config.get("stages") or {}
    return any((config or {}).get("stage") == "speech_clients" for config in stages.values())


def schedule(material: Material, found: Sequence[System]) -> str:
    """The schedule of every system as the config says, each once; whether it is the paper's."""
    stages = material.runs[0].config.get("stages") or {}
    told: dict[str, list[str]] = {}
    for one in found:
        text = _told(stages.get(one.encoder) or {})
        if text and one.encoder not in told.setdefault(text, []):
            told[text].append(one.encoder)
    if not told:
        return ""
    most = max(told, key=lambda text: len(told[text]))
    lines = [f"**Schedule**: {most}."]
    lines += [
        f"Otherwise for {', '.join(f'`{cell(name)}`' for name in names)}: {text}."
        for text, names in told.items()
        if text != most
    ]
    paper = _told(_paper_schedule(material.runs[0].config))
    if paper:
        lines.append("That is the paper's." if most == paper else f"Not the paper's, which is {paper}.")
    return " ".join(lines)


def _told(config: dict[str, Any]) -> str:
    parts = []
    for path, words in SCHEDULE.items():
        value: Any = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            parts.append(words.format(float(value)))
    return ", ".join(parts)


def _paper_schedule(config: dict[str, Any]) -> dict[str, Any]:
    """The paper's conditions on the stage ``fedmpa``, nested like the settings of a stage."""
    found: dict[str, Any] = {}
    for path, value in ((config.get("paper") or {}).get("when") or {}).items():
        prefix, _, rest = path.partition("stages.fedmpa.")
        if prefix or not rest:
            continue
        inner = found
        *parents, last = rest.split(".")
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return found
