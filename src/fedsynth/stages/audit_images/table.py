"""Rows of the audit's table, as metrics and for the report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedsynth.attacks.residual_risk import Proportion
from fedsynth.pipeline.stage import Metric


@dataclass(frozen=True)
class Row:
    """One finding.

    Attributes:
        test: Which test of the specification, T1 to T5.
        space: Feature space it was made in.
        quantity: What was measured, in words.
        value, low, high: With its interval where there is one; NaN where it is undefined.
        chance_or_control: What a release that tells nothing would give, or what the control gave.
        note: What one must know to read it.
        metric: Name of the metric it is stored as.
    """

    test: str
    space: str
    quantity: str
    value: float
    low: float | None
    high: float | None
    chance_or_control: float | None
    note: str
    metric: str

    def as_note(self) -> dict[str, Any]:
        """For the report: undefined numbers are null."""
        named = asdict(self)
        del named["metric"]
        return {name: _defined(value) for name, value in named.items()}

    def as_metric(self, arm: str, seed: int) -> Metric | None:
        """None if the value is undefined."""
        if not math.isfinite(self.value):
            return None
        return Metric(arm, self.metric, self.value, seed, _defined(self.low), _defined(self.high))


def proportion_row(
    found: Proportion, *, test: str, space: str, quantity: str, chance: float, note: str, metric: str
) -> Row:
    """A share with its interval."""
    return Row(test, space, quantity, found.share, found.low, found.high, chance, note, metric)


def _defined(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
