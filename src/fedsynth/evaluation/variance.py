"""Variance components of a balanced crossed design: how much each source of chance moves a number.

Notation: factors i with a_i levels, one value y per cell, N = Π a_i cells. For a set S of factors, SS_S is the
sum of squares of the interaction S (of the main effect, if S holds one factor), with Π_{i∈S} (a_i − 1) degrees
of freedom. All factors are random: their levels stand for all that could have been drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import DataError

RESIDUAL = "residual"


class DesignError(DataError, ValueError):
    """The values do not form a complete crossed design."""


@dataclass(frozen=True)
class VarianceComponent:
    """One source of variance.

    Attributes:
        factors: Factors that make it up; more than one is an interaction, none the residual.
        degrees_of_freedom: Of its mean square.
        sum_of_squares: SS_S, in squared units of the values.
        mean_square: SS_S / degrees of freedom.
        variance: σ²_S by the method of moments, AS ESTIMATED: may be negative, which says "about zero".
        share: max(σ²_S, 0) over the sum of these; NaN if all values are equal.
    """

    factors: tuple[str, ...]
    degrees_of_freedom: int
    sum_of_squares: float
    mean_square: float
    variance: float
    share: float

    @property
    def name(self) -> str:
        """``split``, ``split × partition`` or ``residual``."""
        return " × ".join(self.factors) or RESIDUAL

    @property
    def standard_deviation(self) -> float:
        """√max(σ²_S, 0), in the units of the values."""
        return math.sqrt(max(self.variance, 0.0))


def variance_components(
    values: NDArray[Any], factors: Sequence[str], *, max_order: int = 2
) -> list[VarianceComponent]:
    """ANOVA (method of moments) estimates of all components up to interactions of ``max_order`` factors.

    Expected mean squares of the balanced random model: E[MS_S] = Σ_{T ⊇ S} (Π_{i∉T} a_i) σ²_T + σ²_e, which is
    solved for σ². Interactions of more factors than ``max_order`` are pooled with the error into the residual
    σ²_e, as are replicates within a cell, of which there are none here.

    Estimates are unbiased; with few levels they are rough (a factor with two levels has one degree of freedom).
    All shares are of the spread of ONE value, not of a mean over seeds.

    Args:
        values: One axis per factor, in the order of ``factors``.
        factors: Names of the axes.
        max_order: Largest number of factors of an interaction that gets a component of its own; ≥ 1.

    Returns:
        Main effects in the order of ``factors``, interactions, the residual last.

    Raises:
        DesignError: Axes and names do not match, a factor has one level, a value is missing or not finite,
            or ``max_order`` leaves no residual.
    """
    values = np.asarray(values, dtype=np.float64)
    names = tuple(factors)
    _check(values, names, max_order)
    axes = range(values.ndim)
    groups = [group for order in range(1, max_order + 1) for group in combinations(axes, order)]
    squares = {group: _sum_of_squares(values, group) for group in groups}
    freedom = {group: math.prod(values.shape[axis] - 1 for axis in group) for group in groups}
    total = float(((values - values.mean()) ** 2).sum())
    residual_squares = max(0.0, total - sum(squares.values()))
    residual_freedom = values.size - 1 - sum(freedom.values())
    residual = residual_squares / residual_freedom

    variance: dict[tuple[int, ...], float] = {}
    for group in reversed(groups):  # the largest interactions first: others contain them
        containing = [other for other in variance if set(other) > set(group)]
        rest = sum(_cells_outside(values, other) * variance[other] for other in containing)
        mean_square = squares[group] / freedom[group]
        variance[group] = (mean_square - rest - residual) / _cells_outside(values, group)

    positive = sum(max(item, 0.0) for item in variance.values()) + residual
    spread = total > 1e-24 * max(1.0, float((values**2).sum()))  # else rounding only

    def component(group: tuple[int, ...], square: float, df: int, estimate: float) -> VarianceComponent:
        share = max(estimate, 0.0) / positive if spread else math.nan
        return VarianceComponent(
            tuple(names[axis] for axis in group), df, square, square / df, estimate, share
        )

    found = [component(group, squares[group], freedom[group], variance[group]) for group in groups]
    return [*found, component((), residual_squares, residual_freedom, residual)]


def _sum_of_squares(values: NDArray[np.float64], group: tuple[int, ...]) -> float:
    """SS of one effect: the cell means over the other axes, with every lower-order effect taken out."""
    others = tuple(axis for axis in range(values.ndim) if axis not in group)
    effect = values.mean(axis=others, keepdims=True) if others else values
    for axis in group:
        effect = effect - effect.mean(axis=axis, keepdims=True)
    return float((effect**2).sum()) * _cells_outside(values, group)


def _cells_outside(values: NDArray[np.float64], group: tuple[int, ...]) -> int:
    """Π_{i∉S} a_i."""
    return math.prod(size for axis, size in enumerate(values.shape) if axis not in group)


def _check(values: NDArray[np.float64], names: tuple[str, ...], max_order: int) -> None:
    if values.ndim != len(names) or len(set(names)) != len(names) or not names:
        raise DesignError(
            f"A design needs one axis per factor, got {values.ndim} axes for the factors {list(names)}."
        )
    for name, size in zip(names, values.shape, strict=True):
        if size < 2:
            raise DesignError(
                f"Factor {name!r} has {size} level: its variance cannot be estimated. Run at least two."
            )
    if count := int((~np.isfinite(values)).sum()):
        raise DesignError(
            f"{count} of {values.size} cells are missing or not finite. A crossed design needs every"
            " combination of the levels: run the missing ones."
        )
    if not 1 <= max_order < len(names):
        raise DesignError(
            f"max_order must be at least 1 and below the {len(names)} factors, so that a residual remains,"
            f" got {max_order}."
        )
