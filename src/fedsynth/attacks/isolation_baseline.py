"""How often predicates isolate a record by chance, and at most under differential privacy (Cohen and Nissim 2020)."""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from numpy.typing import NDArray

from fedsynth.evaluation.checks import EvaluationError, check_integer, check_number

Weights = NDArray[np.float64]


@overload
def isolation_baseline(num_train: int, weight: float) -> float: ...
@overload
def isolation_baseline(num_train: int, weight: Weights) -> Weights: ...
def isolation_baseline(num_train: int, weight: float | Weights) -> float | Weights:
    """n w (1 - w)^(n-1): probability that exactly one of n independent records satisfies a predicate of weight w.

    Args:
        num_train: n >= 1.
        weight: w in [0, 1]; one or many.

    Raises:
        EvaluationError: Numbers out of range.
    """
    n, w = check_integer(num_train, "num_train"), _check_weight(weight)
    if n == 1:
        value = w
    else:
        with np.errstate(divide="ignore"):  # w = 1: ln 0, whose exponential is 0
            value = n * w * np.exp((n - 1) * np.log1p(-w))
    return value if isinstance(weight, np.ndarray) else float(value)


@overload
def isolation_ceiling(num_train: int, weight: float) -> float: ...
@overload
def isolation_ceiling(num_train: int, weight: Weights) -> Weights: ...
def isolation_ceiling(num_train: int, weight: float | Weights) -> float | Weights:
    """sup of `isolation_baseline` over all weights w' <= w: its value at min(w, 1/n), where it is largest.

    Raises:
        EvaluationError: Numbers out of range.
    """
    n = check_integer(num_train, "num_train")
    value = isolation_baseline(n, np.minimum(_check_weight(weight), 1 / n))
    return value if isinstance(weight, np.ndarray) else float(value)


def unseen_ceiling(num_train: int, num_control: int) -> float:
    """sup over w of n w (1 - w)^(n + n_c - 1): exactly one of n training records and none of n_c control records.

    It is the share n / N of `isolation_ceiling` for all N = n + n_c records together, since a predicate chosen without
    the release does not know which of them were trained on. So it needs no estimate of weights.

    Raises:
        EvaluationError: Numbers below 1.
    """
    n = check_integer(num_train, "num_train")
    total = n + check_integer(num_control, "num_control")
    return n / total * isolation_ceiling(total, 1.0)


def dp_isolation_bound(num_train: int, weight: float, *, epsilon: float, delta: float = 0.0) -> float:
    """min(1, n (e^ε w + δ)): how often any adversary isolates with predicates of weight <= w after an (ε, δ)-DP release.

    For each record, the predicate and a release that does not depend on the record agree on it with probability <= w;
    replacing one record changes that to at most e^ε w + δ, and there are n records. Adjacency: replace one **record**;
    records drawn independently. Images of one patient count as one record or are not covered. Not tight: at ε = 0 it
    exceeds `isolation_ceiling` by (1 - w)^(1-n).

    Args:
        num_train: n >= 1.
        weight: w in [0, 1].
        epsilon: >= 0; inf gives 1 unless w is 0.
        delta: In [0, 1].

    Raises:
        EvaluationError: Numbers out of range.
    """
    n, w = check_integer(num_train, "num_train"), float(_check_weight(weight))
    epsilon = check_number(epsilon, "epsilon", low=0.0)
    delta = check_number(delta, "delta", low=0.0, high=1.0)
    # In logarithms, since e^ε overflows from ε = 710 on.
    amplified = math.exp(min(0.0, epsilon + math.log(w))) if w > 0 else 0.0
    return min(1.0, n * (amplified + delta))


def _check_weight(weight: float | Weights) -> Weights:
    if not isinstance(weight, np.ndarray):
        return np.asarray(check_number(weight, "weight", low=0.0, high=1.0))
    values = weight.astype(np.float64)
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise EvaluationError(
            f"weight must lie in [0, 1], got values from {values.min():g} to {values.max():g}."
        )
    return values
