"""Splitting one (ε, δ) among several Gaussian releases of the same records. Free of torch.

A Gaussian release of L2 sensitivity Δ with noise σ is μ-GDP, μ = Δ/σ (Dong, Roth and Su, "Gaussian Differential
Privacy", JRSS-B 2022, arXiv:1905.02383). Releases μ_1, μ_2, … together, each allowed to depend on what came out
before, are μ-GDP with

    μ² = Σ_i μ_i²                                   (their composition theorem; for Gaussians nothing is lost),

so a share w_i of the budget is μ_i² = w_i μ², and the whole costs exactly what one Gaussian release of Δ/σ = μ does.

| symbol | name     | meaning                                                            |
|--------|----------|--------------------------------------------------------------------|
| μ      | mu       | sensitivity over noise standard deviation of a release             |
| w_i    | share    | part of the budget, in (0, 1]; all shares add up to 1               |
| ρ      | –        | zero-concentrated budget, μ²/2 for a Gaussian                      |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import lru_cache

from fedsynth.privacy.gaussian import analytic_gaussian_std, gaussian_epsilon
from fedsynth.privacy.parameters import PrivacyParameterError, check_delta, check_epsilon, check_positive


class Composition(StrEnum):
    """How the price of several Gaussian releases is added up.

    Attributes:
        GDP: Exact. The default: the least noise.
        ZCDP: ρ = Σ μ_i²/2 and ε = ρ + 2 √(ρ log(1/δ)) (Bun and Steinke, "Concentrated Differential Privacy",
            TCC 2016, Proposition 1.3). 15 to 30 % more noise for ε from 8 to 1.
        RDP: Rényi divergences at the orders of dp-accounting's ``RdpAccountant``. 6 to 8 % more noise.
        BASIC: ε and δ are split linearly; many times more noise. For comparison only.
    """

    GDP = "gdp"
    ZCDP = "zcdp"
    RDP = "rdp"
    BASIC = "basic"


def gaussian_mu(epsilon: float, delta: float, composition: Composition = Composition.GDP) -> float:
    """The largest μ with which all releases together are (ε, δ)-DP by the given composition.

    Args:
        epsilon: ε in (0, ∞]. ∞ gives ∞: no noise.
        delta: δ in (0, 1).
        composition: Not BASIC, which has no μ of the whole.

    Raises:
        PrivacyParameterError: For a value outside these ranges, or BASIC.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    if composition is Composition.BASIC or epsilon == 0:
        raise PrivacyParameterError(
            f"There is no μ for composition={composition.value!r} and epsilon={epsilon:g}. Take epsilon > 0 and "
            "gdp, zcdp or rdp."
        )
    if math.isinf(epsilon):
        return math.inf
    if composition is Composition.GDP:
        return 1 / analytic_gaussian_std(epsilon, delta, 1.0)
    if composition is Composition.ZCDP:
        log_delta = -math.log(delta)
        # √ρ solves x² + 2 x √log(1/δ) = ε; written so that nothing cancels, rounded down.
        return math.sqrt(2) * epsilon / (math.sqrt(log_delta + epsilon) + math.sqrt(log_delta)) * (1 - 1e-12)
    return _rdp_mu(epsilon, delta)


def share_mu(
    share: float, *, epsilon: float, delta: float, composition: Composition = Composition.GDP
) -> float:
    """μ_i of a release that gets the share w_i of (ε, δ): √w_i μ, or under BASIC that of (w_i ε, w_i δ).

    Raises:
        PrivacyParameterError: If the share is not in (0, 1], or ε or δ are out of range.
    """
    share = check_positive(share, "share")
    if share > 1 + 1e-9:
        raise PrivacyParameterError(
            f"share must be in (0, 1], got {share!r}. Shares are parts of one budget."
        )
    if composition is Composition.BASIC:
        std = analytic_gaussian_std(check_epsilon(epsilon) * share, check_delta(delta) * share, 1.0)
        return math.inf if std == 0 else 1 / std
    return math.sqrt(share) * gaussian_mu(epsilon, delta, composition)


def composed_epsilon(mus: Collection[float], delta: float) -> float:
    """The exact ε of adaptively composed Gaussian releases at δ; 0 for none, ∞ if one has no noise.

    Args:
        mus: Δ_i/σ_i of every release, ≥ 0.
        delta: δ in (0, 1).

    Raises:
        PrivacyParameterError: If δ is out of range, or a μ is negative or NaN.
    """
    delta = check_delta(delta)
    if not all(mu >= 0 for mu in mus):
        raise PrivacyParameterError(
            f"every mu must be >= 0, got {sorted(mus)}. It is sensitivity / noise_std."
        )
    total = math.sqrt(math.fsum(mu * mu for mu in mus))
    if total == 0:
        return 0.0
    return math.inf if math.isinf(total) else gaussian_epsilon(delta, 1 / total, 1.0)


def check_shares(shares: Mapping[str, float], names: Collection[str], where: str = "shares") -> None:
    """Refuse a split of the budget that has other names, a part that is not > 0, or a sum other than 1.

    Args:
        shares: Part of the budget by name.
        names: The names there must be.
        where: What to call it in the message, e.g. ``"stages.release.shares"``.

    Raises:
        PrivacyParameterError: Naming the part, the value and what to do.
    """
    if set(shares) != set(names):
        raise PrivacyParameterError(
            f"{where} must name exactly {', '.join(names)}, got {', '.join(map(str, shares)) or 'nothing'}. "
            "Every part of the release has to be paid for."
        )
    for name, share in shares.items():
        check_positive(share, f"{where}.{name}")
    total = math.fsum(shares.values())
    if abs(total - 1) > 1e-9:
        raise PrivacyParameterError(
            f"{where} must add up to 1, got {total:.10g} from {dict(shares)}. Divide every share by {total:.6g}."
        )


@lru_cache(maxsize=64)
def _rdp_mu(epsilon: float, delta: float) -> float:
    import dp_accounting

    def spends_too_much(mu: float) -> bool:
        # Add or remove: the convention in which the number is noise over the whole sensitivity.
        accountant = dp_accounting.rdp.RdpAccountant()
        return accountant.compose(dp_accounting.GaussianDpEvent(1 / mu)).get_epsilon(delta) > epsilon

    high = gaussian_mu(epsilon, delta)  # exact, so nothing allows more
    low = high
    while spends_too_much(low):
        low /= 2
        if low < high * 2.0**-30:
            raise PrivacyParameterError(
                f"composition=rdp cannot reach epsilon={epsilon:g} at delta={delta:g} with the orders of "
                "dp-accounting. Use composition=gdp, which is exact."
            )
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spends_too_much(middle) else (middle, high)
    return low
