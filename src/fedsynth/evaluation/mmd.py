"""Maximum mean discrepancy with a Gaussian kernel (Gretton et al. 2012), in bounded memory."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.evaluation.checks import (
    MAX_MAGNITUDE,
    EvaluationError,
    PointSet,
    check_number,
    check_point_pair,
    check_points,
)
from fedsynth.evaluation.pairwise import CHUNK_ELEMENTS

#: The median heuristic uses at most this many points (all pairs of them: 64 MB).
MAX_MEDIAN_POINTS = 4_000


def median_bandwidth(points: PointSet) -> float:
    """Median heuristic: the (lower) median Euclidean distance over all pairs of different rows.

    Sets above `MAX_MEDIAN_POINTS` are thinned to every m-th row, so the value is deterministic.

    Raises:
        EvaluationError: Fewer than two points, or a median of 0 (over half of all pairs are duplicates).
    """
    tensor = check_points(points, "points", min_points=2).double()
    tensor = tensor[:: -(-len(tensor) // MAX_MEDIAN_POINTS)]
    median = float(torch.pdist(tensor).median())
    if median == 0:
        raise EvaluationError(
            "the median distance between points is 0 (mostly duplicates), which is no kernel bandwidth. "
            "Pass bandwidth= explicitly."
        )
    return median


def _mean_kernel(
    first: Float[Tensor, "n d"], second: Float[Tensor, "m d"], bandwidth: float, *, skip_diagonal: bool
) -> float:
    """Mean of exp(-||a-b||² / (2 bandwidth²)) over all pairs, or over all pairs of different rows."""
    total = first.new_zeros(())
    second_norm = second.square().sum(dim=1)
    step = max(1, CHUNK_ELEMENTS // len(second))
    for start in range(0, len(first), step):
        block = first[start : start + step]
        squared = torch.addmm(second_norm, block, second.T, alpha=-2.0) + block.square().sum(
            dim=1, keepdim=True
        )
        kernel = squared.clamp_(min=0).mul_(-0.5 / bandwidth / bandwidth).exp_()  # [row, m]
        if skip_diagonal:
            kernel.diagonal(offset=start).zero_()
        total += kernel.sum()
    pairs = len(first) * (len(second) - skip_diagonal)
    return float(total) / pairs


def rbf_mmd(*, real: PointSet, synthetic: PointSet, bandwidth: float | None = None) -> float:
    """Unbiased squared maximum mean discrepancy with the kernel exp(-||a-b||² / (2 bandwidth²)).

    Gretton et al. (2012), Eq. (3): pairs of a point with itself are left out. The expectation is 0 when both
    sets come from one distribution, so **single values may be negative**; it is at most 2. The two sets are
    treated as independent samples: comparing a set with itself gives a negative value, not 0.

    Squared distances carry a rounding error of about 1e-15 times the squared norms of the centered points, so
    a bandwidth below a millionth of these norms gives no meaningful value.

    Args:
        real: Real points, at least 2.
        synthetic: Synthetic points, at least 2, same features.
        bandwidth: σ of the kernel, in units of the points; None takes the median heuristic on **real** only
            (see `median_bandwidth`), so that all systems compared with one real set share one kernel.

    Raises:
        EvaluationError: Bad points, fewer than two, or a bandwidth that is not a positive finite number.
    """
    real_points, synthetic_points = check_point_pair(real, synthetic, min_points=2)
    # fidelity: mmd-bandwidth
    sigma = (
        median_bandwidth(real_points)
        if bandwidth is None
        else check_number(
            bandwidth, "bandwidth", low=1 / MAX_MAGNITUDE, high=MAX_MAGNITUDE, remedy="None uses the median."
        )
    )
    center = real_points.double().mean(dim=0)
    x, y = real_points.double() - center, synthetic_points.double() - center
    return (
        _mean_kernel(x, x, sigma, skip_diagonal=True)
        + _mean_kernel(y, y, sigma, skip_diagonal=True)
        - 2 * _mean_kernel(x, y, sigma, skip_diagonal=False)
    )
