"""Calibration of Gaussian noise by the exact ("analytic") condition of Balle and Wang. Free of torch.

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8:
noise of standard deviation σ on a quantity of L2 sensitivity Δ is (ε, δ)-DP if and only if

    δ ≥ δ(ε, σ/Δ) = Φ(a) - e^ε Φ(b),    a = μ/2 - ε/μ,    b = -μ/2 - ε/μ,    μ = Δ/σ.

| symbol | name        | meaning                                                      |
|--------|-------------|--------------------------------------------------------------|
| ε, δ   | epsilon, delta | the budget of one release                                 |
| σ      | std         | standard deviation of the noise in every coordinate          |
| Δ      | sensitivity | largest L2 distance between the results on neighboring data  |
| μ      | mu          | Δ/σ                                                          |
| R(x)   | mills       | Φ(x)/φ(x), finite and increasing                             |

Since e^ε φ(b) = φ(a), the condition reads δ = φ(a) [R(a) - R(b)]: no factor overflows and nothing large
cancels, however large ε and however small δ. The textbook formula σ = Δ √(2 ln(1.25/δ)) / ε is not used
anywhere: it adds too little noise for larger ε (for ε = 8, δ = 1e-3 already).

Everything is rounded towards privacy: more noise, larger δ, larger ε, by about one part in 10¹¹.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsynth.privacy.parameters import (
    PrivacyParameterError,
    check_delta,
    check_epsilon,
    check_noise_std,
    check_positive,
)

_SERIES_BELOW = 1e-3  # μ below which R(a) - R(b) comes from its Taylor series


def analytic_gaussian_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest noise standard deviation that makes one release (ε, δ)-DP.

    Implements FedDP-PALD Eq. (21): the root σ of δ(ε, σ/Δ) = δ, rounded up.

    Args:
        epsilon: ε in [0, ∞]. ∞ asks for no noise and returns 0.0. For 0 the total variation distance
            between neighboring outputs is at most δ.
        delta: δ in (0, 1).
        sensitivity: Δ, L2, in the units of the released quantity. Finite and > 0.

    Returns:
        σ in the units of ``sensitivity``; it scales with it and falls in ε and in δ.

    Raises:
        PrivacyParameterError: For a value outside these ranges, NaN included.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    sensitivity = check_positive(sensitivity, "sensitivity")
    if math.isinf(epsilon):
        return 0.0
    allowed = math.log(delta)

    def excess(log_ratio: float) -> float:
        return _log_delta(epsilon, math.exp(-log_ratio)) - (allowed - _margin(epsilon))

    # Bracket log(σ/Δ) by doubling and halving, then solve.
    low = high = 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(2)
    while excess(low) <= 0:
        low, high = low - math.log(2), low
    ratio = math.exp(_root(excess, low, high))
    while _log_delta(epsilon, 1 / ratio) > allowed:  # against the root finder's own tolerance
        ratio *= 1 + 1e-12
    if math.isinf(ratio * sensitivity):
        raise PrivacyParameterError(
            f"sensitivity must be small enough for a finite noise, got {sensitivity!r} (the noise would be "
            f"{ratio:g} times that). Clip to a smaller radius."
        )
    return ratio * sensitivity


def gaussian_delta(epsilon: float, std: float, sensitivity: float) -> float:
    """The δ that noise of standard deviation ``std`` achieves at ε: Balle and Wang, Theorem 8.

    The inverse of :func:`analytic_gaussian_std` in δ. Without noise it is 1 (0 at ε = ∞).

    Args:
        epsilon: ε in [0, ∞].
        std: σ in [0, ∞], in the units of ``sensitivity``.
        sensitivity: Δ, L2, finite and > 0.

    Returns:
        δ in [0, 1].

    Raises:
        PrivacyParameterError: For a value outside these ranges.
    """
    epsilon, std = check_epsilon(epsilon), check_noise_std(std)
    sensitivity = check_positive(sensitivity, "sensitivity")
    if math.isinf(epsilon) or math.isinf(std):
        return 0.0
    mu = sensitivity / std if std > 0 else math.inf
    return 1.0 if math.isinf(mu) else min(1.0, math.exp(_log_delta(epsilon, mu)))


def gaussian_epsilon(delta: float, std: float, sensitivity: float) -> float:
    """The smallest ε at which noise of standard deviation ``std`` is (ε, δ)-DP, rounded up.

    Args:
        delta: δ in (0, 1).
        std: σ in [0, ∞], in the units of ``sensitivity``. Without noise ε is ∞.
        sensitivity: Δ, L2, finite and > 0.

    Returns:
        ε in [0, ∞]; 0 when the total variation distance is already below δ.

    Raises:
        PrivacyParameterError: For a value outside these ranges.
    """
    delta, std = check_delta(delta), check_noise_std(std)
    sensitivity = check_positive(sensitivity, "sensitivity")
    if math.isinf(std):
        return 0.0
    mu = sensitivity / std if std > 0 else math.inf
    # δ(ε) ≤ Φ(a) ≤ exp(-a²/2), so this ε is always enough and bounds the root from above.
    enough = mu * mu / 2 + mu * math.sqrt(2 * -math.log(delta)) * (1 + 1e-6)
    if math.isinf(enough):
        return math.inf
    allowed = math.log(delta)

    def excess(epsilon: float) -> float:
        return _log_delta(epsilon, mu) - (allowed - _margin(enough))

    if excess(0.0) <= 0:
        return 0.0
    epsilon = _root(excess, 0.0, enough)
    while _log_delta(epsilon, mu) > allowed:  # against the root finder's own tolerance
        epsilon *= 1 + 1e-12
    return epsilon


def _log_delta(epsilon: float, mu: float) -> float:
    """log δ(ε, 1/μ) for finite ε ≥ 0 and μ > 0, to a relative error of δ of about 1e-12."""
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    log_density = -0.5 * a * a - 0.5 * math.log(2 * math.pi)  # log φ(a)
    if a >= 0 and mu >= _SERIES_BELOW:
        return math.log(0.5 * math.erfc(-a / math.sqrt(2)) - math.exp(log_density) * _mills(b))
    if mu >= _SERIES_BELOW:
        difference = _mills(a) - _mills(b)
    else:
        difference = _mills_difference_series(-epsilon / mu, mu)
    if difference <= 0:  # cancelled completely, far out in the tail: δ ≤ Φ(a) is the safe side
        difference = _mills(a)
    return log_density + math.log(difference) if difference > 0 else -math.inf


def _mills(x: float) -> float:
    """R(x) = Φ(x)/φ(x) for x not far above 0."""
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2) * float(erfcx(-x / math.sqrt(2)))


def _mills_difference_series(center: float, mu: float) -> float:
    """R(center + μ/2) - R(center - μ/2) for small μ; the next term is of order μ⁵/1920."""
    value = _mills(center)
    first = 1 + center * value  # R' = 1 + x R
    third = 2 * first + center * (value + center * first)  # R''' = 2 R' + x R''
    return mu * first + mu**3 / 24 * third


def _margin(epsilon: float) -> float:
    """How far below log δ to aim: larger than the rounding error of ``_log_delta``, which grows with √ε."""
    return 1e-11 * (1 + math.sqrt(epsilon) / 100)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    # Imported here: scipy.optimize takes longer to load than checking a whole configuration.
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-15, rtol=1e-14, maxiter=500))
