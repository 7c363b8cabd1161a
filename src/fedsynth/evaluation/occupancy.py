"""Occupancy: how many distinct items n uniform draws hit, and how many items there are if K distinct ones were hit.

n draws fall on s items, uniformly and independently; K counts the distinct ones:

    P(K = k | s, n) = S2(n, k) s! / ((s - k)! s^n)        (S2: Stirling number of the second kind)

The estimate is ŝ = argmax of it over k <= s <= N. S2 does not depend on s, so only ln s! - ln (s - k)! - n ln s is
maximized. Its step from s - 1 to s is ln(s / (s - k)) + n ln(1 - 1/s), which is >= 0 exactly while
E[K | s] = s (1 - (1 - 1/s)^n) does not exceed k. E[K | s] grows with s, so the likelihood has one peak, ŝ is the
largest s with E[K | s] <= k, and bisection finds it without differences of large log-gamma values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedsynth.evaluation.checks import EvaluationError, check_integer, check_number

Bounds = Literal["exact", "normal"]


def distinct_moments(num_queries: int, num_reachable: int) -> tuple[float, float]:
    """Mean and standard deviation of K, the distinct items among n uniform draws from s.

    E[K] = s (1 - (1 - 1/s)^n), Var[K] = s (s - 1)(1 - 2/s)^n + s (1 - 1/s)^n - s² (1 - 1/s)^{2n}, the latter
    rearranged to avoid the cancellation of terms of size s².

    Raises:
        EvaluationError: A number that is no integer >= 1.
    """
    n, s = check_integer(num_queries, "num_queries"), check_integer(num_reachable, "num_reachable")
    if s == 1:
        return 1.0, 0.0
    missed = math.exp(n * math.log1p(-1 / s))  # the probability that an item is not drawn
    variance = (s * missed) ** 2 * _power_minus_one((s - 1) ** -2.0, n) - s * missed * _power_minus_one(
        1 / (s - 1), n
    )
    return -s * _power_minus_one(1 / s, n), math.sqrt(max(0.0, variance))


def _power_minus_one(x: float, exponent: int) -> float:
    """(1 - x)^exponent - 1 for x in (0, 1], exact for tiny x."""
    return math.expm1(exponent * math.log1p(-x)) if x < 1 else -1.0


def distinct_distribution(
    num_queries: int, num_reachable: int, max_distinct: int | None = None
) -> NDArray[np.float64]:
    """P(K = k | s, n) for k = 0 … min(n, s, ``max_distinct``), exactly, draw by draw.

    p_i(k) = p_{i-1}(k) k/s + p_{i-1}(k-1) (1 - (k-1)/s): a sum of positive terms, so the relative error is a few n
    rounding errors. Counts only grow, so what is left out above ``max_distinct`` does not change what is below. Takes
    n · min(n, s, max_distinct) / 2 multiplications twice.

    Raises:
        EvaluationError: A number that is no integer >= 1.
    """
    n, s = check_integer(num_queries, "num_queries"), check_integer(num_reachable, "num_reachable")
    limit = min(n, s)
    if max_distinct is not None:
        limit = min(limit, check_integer(max_distinct, "max_distinct", minimum=0))
    probability = np.zeros(limit + 1)
    probability[0] = 1.0
    known = np.arange(limit + 1) / s  # the next draw hits one of k known items
    for draw in range(1, n + 1):
        last = min(draw, limit)
        grown = probability[:last] * (1 - known[:last])
        probability[: last + 1] *= known[: last + 1]
        probability[1 : last + 1] += grown
    return probability


def reachable_records(num_distinct: int, num_queries: int, num_train: int) -> int:
    """ŝ: the number of equally likely training records under which K distinct retrievals are most probable.

    K = n gives N: no retrieval was repeated, so the likelihood still grows there.

    Args:
        num_distinct: K, from 1 to min(n, N).
        num_queries: n.
        num_train: N, the ceiling of the estimate.

    Raises:
        EvaluationError: A number that is no integer in its range.
    """
    k, n, train = _check_counts(num_distinct, num_queries, num_train)
    if k == n:
        return train
    return _largest(k, train, lambda s: distinct_moments(n, s)[0] <= k)


def reachable_bounds(
    num_distinct: int, num_queries: int, num_train: int, *, tail: float = 0.05, bounds: Bounds = "exact"
) -> tuple[int, int] | tuple[None, int]:
    """The s that K distinct retrievals do not contradict: [low, high], each side by its own tail.

    high is the largest s <= N with P(K' <= K | s) >= tail, low the smallest with P(K' >= K | s) >= tail. Only the
    chance of the draws under the uniform model is covered, not that of the features or the training.

    Args:
        num_distinct, num_queries, num_train: See `reachable_records`.
        tail: Tail probability of each side, in (0, 0.5); 0.05 gives 90 % intervals.
        bounds: ``exact`` by `distinct_distribution` (about 4 s for n = 9,000; grows with n²), or ``normal`` with
            continuity correction, which is close when the repeats n - K and the items not hit, ŝ - K, exceed about 30.

    Returns:
        low is None if not even s = N allows that many distinct records.

    Raises:
        EvaluationError: Counts out of range, a tail outside (0, 0.5), or unknown ``bounds``.
    """
    k, n, train = _check_counts(num_distinct, num_queries, num_train)
    tail = check_number(tail, "tail", low=0.0, high=0.5, is_open=True, remedy="The usual value is 0.05.")
    if bounds not in ("exact", "normal"):
        raise EvaluationError(f"bounds must be 'exact' or 'normal', got {bounds!r}.")
    below = _exact_below if bounds == "exact" else _normal_below
    high = _largest(k, train, lambda s: below(k + 1, n, s) >= tail)
    if 1 - below(k, n, train) < tail:
        return None, high
    # The largest s that is still too small; k - 1 records cannot give k distinct ones.
    too_small = _largest(k - 1, train, lambda s: 1 - below(k, n, s) < tail)
    return too_small + 1, high


def _exact_below(count: int, num_queries: int, num_reachable: int) -> float:
    """P(K < count)."""
    return float(distinct_distribution(num_queries, num_reachable, count - 1).sum())


def _normal_below(count: int, num_queries: int, num_reachable: int) -> float:
    """P(K < count) by the normal approximation with continuity correction; of a constant K exactly."""
    mean, std = distinct_moments(num_queries, num_reachable)
    if std == 0:
        return float(mean < count)
    return float(ndtr((count - 0.5 - mean) / std))


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest s in [low, high] for which `holds`; it holds at low, and once it does not it never does again."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _check_counts(num_distinct: int, num_queries: int, num_train: int) -> tuple[int, int, int]:
    n, train = check_integer(num_queries, "num_queries"), check_integer(num_train, "num_train")
    k = check_integer(num_distinct, "num_distinct")
    if k > min(n, train):
        raise EvaluationError(
            f"num_distinct must be at most the {n} queries and the {train} training records, got {k}. "
            "Count distinct retrieved rows."
        )
    return k, n, train
