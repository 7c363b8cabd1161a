"""From which release, generator and budget a stage's latents come: found by walking the inputs in the config."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: The input that carries the latents on, by kind of stage.
_CARRIERS = {
    "tstr_mlp": "train",
    "audit": "synthetic",
    "synthesize": "denoiser",
    "latent_ddpm": "mixture",
    "mix": "release",
}
_GENERATORS = {"mix": "mixture", "synthesize": "diffusion"}
#: Stages of a comparison beside the main branch: another budget, protocol or release.
_VARIANT = re.compile(r"_(eps_?[\d.p]+|nonprivate|primary|paid\w*)$")


@dataclass(frozen=True)
class Branch:
    """Where latents come from.

    Attributes:
        generator: ``real``, ``mixture`` or ``diffusion``.
        epsilon: Of the release; ∞ without noise, None for real latents.
        release: Name of the release stage; None for real latents.
        is_selected: Whether a snapshot of the generator was selected on validation latents ("primary").
        is_paid: Whether the release is a variant whose every quantity is paid for.
    """

    generator: str
    epsilon: float | None = None
    release: str | None = None
    is_selected: bool = False
    is_paid: bool = False

    @property
    def budget(self) -> str:
        """``ε = 4``, ``ε = ∞`` or an empty text."""
        if self.epsilon is None:
            return ""
        value = "∞" if math.isinf(self.epsilon) else f"{self.epsilon:g}"
        return f"ε\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{value}"

    @property
    def title(self) -> str:
        """``DP diffusion, ε = 4 (selected snapshot)``."""
        if self.epsilon is None:
            return "real latents"
        kind = "non-private" if math.isinf(self.epsilon) else "DP"
        notes = [
            text
            for text, holds in (("selected snapshot", self.is_selected), ("all paid", self.is_paid))
            if holds
        ]
        return f"{kind} {self.generator}, {self.budget}" + (f" ({', '.join(notes)})" if notes else "")


def branch_of(config: dict[str, Any], name: str) -> Branch | None:
    """The branch of stage ``name``, or None if its latents cannot be traced (another kind of stage).

    Args:
        config: The resolved config of a run.
        name: A stage whose ``stage`` entry names its kind.
    """
    stages = config.get("stages") or {}
    generator, selected = "", False
    for _ in range(len(stages) + 1):  # a broken config may hold a cycle
        stage = stages.get(name)
        if not isinstance(stage, dict):
            return None
        kind, inputs = stage.get("stage"), stage.get("inputs") or {}
        if kind == "encode":
            return Branch("real") if not generator else None
        if kind == "release":
            epsilon = stage.get("epsilon")
            if epsilon is None:
                return None
            return Branch(
                generator or "release", float(epsilon), name, selected, stage.get("variant") == "moments"
            )
        generator = generator or _GENERATORS.get(str(kind), "")
        selected = selected or bool(kind == "synthesize" and inputs.get("validation"))
        name = str(inputs.get(_CARRIERS.get(str(kind), "")))
    return None


def is_variant(name: str) -> bool:
    """Whether a stage belongs to a comparison beside the main branch, by its name: ``mix_eps1``, ``audit_paid``."""
    return bool(_VARIANT.search(name))


def compares_branches(names: Iterable[str]) -> bool:
    """Whether a run holds more than one branch: several budgets, protocols or releases."""
    return any(is_variant(name) and not name.endswith("_nonprivate") for name in names)
