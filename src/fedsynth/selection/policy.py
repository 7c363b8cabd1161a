"""What happens to images all of whose candidates are flagged: with which guidance weights to sample again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from fedsynth.selection.inputs import SelectionInputError

#: Below this two weights are one: 1.2 - 0.1 · 2 is not 1.0 in floating point.
SAME_WEIGHT = 1e-9


def guidance_schedule(
    first: float,
    *,
    weights: Sequence[float] | None = None,
    step: float | None = None,
    floor: float | None = None,
) -> tuple[float, ...]:
    """The guidance weights of the rounds, the first of which the candidates were sampled with already.

    Args:
        first: w of the candidates.
        weights: Falling weights; those below ``first`` are the further rounds. An empty list means one round.
        step: Or how much less each round has: the paper's 0.1.
        floor: With ``step``, the last weight is the smallest that is not below it. The paper names none; its
            log shows 0.8.

    Raises:
        SelectionInputError: If neither or both forms are given, weights do not fall, or a value is out of range.
    """
    if (weights is None) == (step is None) or (step is None) != (floor is None):
        raise SelectionInputError(
            f"Say either weights, or step and floor; got weights={weights}, step={step}, floor={floor}."
        )
    if weights is not None:
        wanted = [float(weight) for weight in weights]
        falls = all(high - low > SAME_WEIGHT for high, low in pairwise(wanted))
        if not falls or not all(math.isfinite(weight) and weight >= 0 for weight in wanted):
            raise SelectionInputError(f"Guidance weights must fall and be at least 0, got {wanted}.")
        return (first, *(weight for weight in wanted if first - weight > SAME_WEIGHT))
    assert step is not None
    assert floor is not None
    if not (math.isfinite(step) and step > 0 and math.isfinite(floor) and floor >= 0):
        raise SelectionInputError(f"step must be positive and floor at least 0, got {step} and {floor}.")
    rounds = max(0, math.floor((first - floor) / step + SAME_WEIGHT))
    # Rounded, so that the weight of a round is the number a reader would write.
    return (first, *(round(first - step * number, 9) for number in range(1, rounds + 1)))
