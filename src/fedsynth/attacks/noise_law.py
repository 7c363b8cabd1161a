"""How an attack weakens with noise: d' = a / σ, the law of a score that is linear in the noisy release.

Notation: d' sensitivity index, the distance between member and non-member scores in standard deviations of the
score; σ noise standard deviation in any fixed unit, e.g. of the sensitivity Δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from fedsynth.evaluation.checks import EvaluationError, check_number


def sensitivity_index(auroc: float) -> float:
    """d' = √2 Φ⁻¹(AUROC): the separation of two equal-variance Gaussians with that AUROC.

    0 at chance, negative below; ∓∞ at an AUROC of 0 and 1. Pooled scores are not Gaussian in general: then d' is
    a scale, not a test statistic.

    Raises:
        EvaluationError: If `auroc` is not in [0, 1].
    """
    auroc = check_number(auroc, "auroc", low=0.0, high=1.0, remedy="Take it from an attack.")
    return math.sqrt(2) * float(special.ndtri(auroc))


def auroc_of_index(index: float) -> float:
    """Φ(d' / √2), the inverse of `sensitivity_index`.

    Raises:
        EvaluationError: If `index` is no number.
    """
    index = check_number(index, "index", remedy="Take it from sensitivity_index.")
    return float(special.ndtr(index / math.sqrt(2)))


class InverseNoiseFit(NamedTuple):
    """d' = slope / σ, fitted through the points.

    Attributes:
        slope: a, in the unit of σ.
        slope_std: Its standard error: from the standard errors given, else from the residuals (NaN for one point).
        chi_square: Σ ((d' - a/σ) / se)² with the standard errors given, else NaN. About (points - 1) if the law
            holds.
        num_points: Points fitted.
    """

    slope: float
    slope_std: float
    chi_square: float
    num_points: int

    def auroc(self, noise_std: float) -> float:
        """The AUROC the law predicts at a noise level."""
        return auroc_of_index(self.slope / noise_std)


def fit_inverse_noise(
    noise_std: Sequence[float],
    auroc: Sequence[float],
    auroc_error: Sequence[float] | None = None,
) -> InverseNoiseFit:
    """Weighted least squares of d' on 1/σ through the origin.

    The law holds for a score linear in the released mean while noise outweighs the spread of the shard mean; not
    without noise, and only roughly for a likelihood ratio over unknown shards. FedDP-PALD's own table obeys it
    with a = 0.022 (σ in units of Δ at δ = 1e-5), which this function recovers.

    Args:
        noise_std: σ > 0, finite, of each point: leave the release without noise out.
        auroc: AUROC of each point, strictly between 0 and 1.
        auroc_error: Standard error of each AUROC, > 0; the weights are 1 / Var(d') by the delta method. Without it
            all points weigh alike.

    Raises:
        EvaluationError: No points, unequal lengths, or a value out of range.
    """
    noise, value = _column(noise_std, "noise_std"), _column(auroc, "auroc")
    errors = None if auroc_error is None else _column(auroc_error, "auroc_error")
    sizes = {len(column) for column in (noise, value, errors) if column is not None}
    if sizes != {len(noise)} or len(noise) == 0:
        raise EvaluationError(
            f"noise_std, auroc and auroc_error need one value per point, got {sorted(sizes)} values. "
            "Give every noise level once."
        )
    if not (noise > 0).all() or not ((value > 0) & (value < 1)).all():
        raise EvaluationError(
            f"noise_std must be > 0 and auroc in (0, 1), got {noise.tolist()} and {value.tolist()}. "
            "Leave out the release without noise."
        )
    inverse, index = 1 / noise, math.sqrt(2) * special.ndtri(value)
    if errors is None:
        slope = float((inverse * index).sum() / (inverse**2).sum())
        residual = index - slope * inverse
        freedom = len(noise) - 1
        variance = float((residual**2).sum()) / freedom if freedom else math.nan
        return InverseNoiseFit(slope, math.sqrt(variance / (inverse**2).sum()), math.nan, len(noise))
    if not (errors > 0).all():
        raise EvaluationError(
            f"auroc_error must be > 0, got {errors.tolist()}. Use the standard error over repetitions."
        )
    # d d'/d AUROC = √2 / φ(Φ⁻¹(AUROC))
    density = np.exp(-(special.ndtri(value) ** 2) / 2) / math.sqrt(2 * math.pi)
    index_error = math.sqrt(2) / density * errors
    weight = index_error**-2
    precision = float((weight * inverse**2).sum())
    slope = float((weight * inverse * index).sum()) / precision
    chi_square = float((weight * (index - slope * inverse) ** 2).sum())
    return InverseNoiseFit(slope, precision**-0.5, chi_square, len(noise))


def _column(values: Sequence[float], name: str) -> Float[np.ndarray, " point"]:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or not np.isfinite(column).all():
        raise EvaluationError(f"{name} must be a list of finite numbers, got {values!r}.")
    return column
