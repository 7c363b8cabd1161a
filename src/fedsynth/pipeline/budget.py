"""The privacy budget of a run: what its stages will spend, known from their settings before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedsynth.errors import BudgetError

Prices = Mapping[str, tuple[float, float] | None]


def total_price(prices: Prices) -> tuple[float, float]:
    """Basic composition: ε and δ of all stages add up (δ at most 1), whether they are stored already or not.

    Args:
        prices: (ε, δ) by stage; None for a stage that releases nothing.
    """
    spent = [price for price in prices.values() if price is not None]
    return math.fsum(epsilon for epsilon, _ in spent), min(1.0, math.fsum(delta for _, delta in spent))


def describe_prices(prices: Prices) -> str:
    """The prices in words, e.g. ``fusion_encoder 8 + release 4 = 12 (δ = 2e-05)``."""
    parts = [f"{name} {_epsilon(price[0])}" for name, price in prices.items() if price is not None]
    epsilon, delta = total_price(prices)
    return f"{' + '.join(parts)} = {_epsilon(epsilon)} (δ = {delta:g})" if parts else "nothing"


def check_budget(prices: Prices, budget: float | None) -> None:
    """Refuse a run that would spend more than it may.

    Args:
        prices: (ε, δ) by stage.
        budget: Largest ε of all stages together; None is no limit.

    Raises:
        BudgetError: If the total exceeds the budget; the message lists the price of every stage.
    """
    if budget is None:
        return
    unprotected = [name for name, price in prices.items() if price is not None and math.isinf(price[0])]
    if unprotected and not math.isinf(budget):
        raise BudgetError(
            f"privacy.budget={budget:g} cannot be kept: {', '.join(unprotected)} releases without guarantee. "
            f"Planned ε: {describe_prices(prices)}. Train the encoder with privacy=dp_sgd, or set "
            "privacy.budget=null."
        )
    if total_price(prices)[0] > budget * (1 + 1e-12):  # against the rounding of a sum, not of a guarantee
        raise BudgetError(
            f"privacy.budget={budget:g} would be exceeded. Planned ε: {describe_prices(prices)}. Lower "
            "privacy.epsilon or privacy.encoder.epsilon, leave a stage out, or raise privacy.budget. "
            "Nothing was computed."
        )


def _epsilon(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"
