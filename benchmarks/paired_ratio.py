"""The ratio of what two things cost that took turns, for the benchmarks of this folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean over turns of numerator / denominator, between the ends of its 95 % t-interval: low, mean, high."""
    logs = np.log(np.asarray(numerator) / np.asarray(denominator))
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    low, mean, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return float(low), float(mean), float(high)
