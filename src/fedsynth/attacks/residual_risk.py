"""Success rates with intervals, and what of a rate remains beyond that on records which were never used.

Residual risk is (s_train - s_control) / (1 - s_control) of two success rates (Giomi et al. 2023, "anonymeter"). It is
no evidence of safety: a rate is that of one attack with one encoder, and a stronger attack may exist. Intervals treat
attacks as independent, which several releases of one source or one patient are not, and do not cover the training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtri

from fedsynth.evaluation.checks import check_integer, check_number


@dataclass(frozen=True)
class Proportion:
    """A success rate with its Wilson score interval; see `wilson_proportion`."""

    successes: float
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Successes / trials."""
        return self.successes / self.trials


@dataclass(frozen=True)
class ResidualRisk:
    """(s_train - s_control) / (1 - s_control) and its interval; below 0 if the control is the more successful one."""

    estimate: float
    low: float
    high: float


def wilson_proportion(successes: float, trials: int, *, confidence: float = 0.95) -> Proportion:
    """A proportion with its Wilson score interval (Wilson 1927), without continuity correction.

    With z the normal quantile, s the share and m trials: (s + z²/2m ± z √(s (1 - s)/m + z²/4m²)) / (1 + z²/m).

    Args:
        successes: From 0 to ``trials``. May be a sum of probabilities: values in [0, 1] of mean s have a variance of at
            most s (1 - s), so the interval is then wider than it need be.
        trials: m >= 1.
        confidence: Two-sided, in (0, 1).

    Raises:
        EvaluationError: Numbers out of range.
    """
    trials = check_integer(trials, "trials")
    successes = check_number(successes, "successes", low=0.0, high=trials)
    confidence = check_confidence(confidence)
    z, share = float(ndtri((1 + confidence) / 2)), successes / trials
    center = share + z**2 / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    # At the ends the limits are 0 and 1 exactly, which rounding would miss.
    low = 0.0 if share == 0 else max(0.0, (center - half) / scale)
    high = 1.0 if share == 1 else min(1.0, (center + half) / scale)
    return Proportion(successes=successes, trials=trials, low=low, high=high)


def check_confidence(confidence: object) -> float:
    """A confidence in (0, 1).

    Raises:
        EvaluationError: Otherwise.
    """
    return check_number(
        confidence, "confidence", low=0.0, high=1.0, is_open=True, remedy="The usual value is 0.95."
    )


def residual_risk(train: Proportion, control: Proportion) -> ResidualRisk:
    """Success on training records beyond that on the control, relative to what the control leaves to gain.

    1 - risk is the ratio of the two failure rates. Its interval combines the Wilson limits of both on the logarithmic
    scale (Zou and Donner 2008), for independent rates; rates of the same predicates on two sets are not independent.
    Not clipped at 0: an interval that lies below 0 shows a control that differs from the training records.

    Args:
        train: Successes on training records.
        control: Successes of the same attack on equally many records that were never used, of the same confidence.

    Returns:
        NaN if the attack always succeeds on the control: nothing is left to gain.
    """
    # fidelity: residual-risk-interval
    q_train, q_control = 1 - train.share, 1 - control.share
    if q_control == 0:
        return ResidualRisk(math.nan, math.nan, math.nan)
    if q_train == 0:
        return ResidualRisk(estimate=1.0, low=1 - (1 - train.low) / q_control, high=1.0)
    ratio = q_train / q_control
    down = math.hypot(_log_ratio(q_train, 1 - train.high), _log_ratio(1 - control.low, q_control))
    up = math.hypot(_log_ratio(1 - train.low, q_train), _log_ratio(q_control, 1 - control.high))
    return ResidualRisk(estimate=1 - ratio, low=1 - ratio * math.exp(up), high=1 - ratio * math.exp(-down))


def _log_ratio(first: float, second: float) -> float:
    """ln(first / second); a limit that rounds to 0 is infinitely far away."""
    return math.log(first / second) if second > 0 else math.inf
