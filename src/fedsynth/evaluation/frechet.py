"""Fréchet distance between two point sets seen as Gaussians."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.evaluation.checks import PointSet, check_point_pair


def _symmetric_sqrt(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    eigenvalue, vector = torch.linalg.eigh(covariance)
    return (vector * eigenvalue.clamp(min=0).sqrt()) @ vector.T


def gaussian_frechet_distance(
    first_mean: Float[Tensor, " d"],
    first_covariance: Float[Tensor, "d d"],
    second_mean: Float[Tensor, " d"],
    second_covariance: Float[Tensor, "d d"],
) -> float:
    """||m1 - m2||² + Tr(S1 + S2 - 2 (S1 S2)^{1/2}) (Dowson & Landau 1982), a *squared* distance as in FID.

    The trace of the root is that of (S1^{1/2} S2 S1^{1/2})^{1/2}, i.e. the sum of the singular values of
    S1^{1/2} S2^{1/2}. Taking them directly avoids the complex roots of a general matrix square root and the
    root of rounding errors; the tiny negative results rounding can leave are clamped to 0.
    """
    m1, m2 = first_mean.double(), second_mean.double()
    s1, s2 = first_covariance.double(), second_covariance.double()
    trace_root = torch.linalg.svdvals(_symmetric_sqrt(s1) @ _symmetric_sqrt(s2)).sum()
    distance = (m1 - m2).square().sum() + s1.trace() + s2.trace() - 2 * trace_root
    return max(0.0, float(distance))


def frechet_distance(*, real: PointSet, synthetic: PointSet, shrinkage: float = 1e-6) -> float:
    """Fréchet distance between Gaussians fitted to two point sets; 0 for identical sets.

    Covariances are the unbiased ones (divisor n - 1) plus ``shrinkage * I``, which keeps them positive
    definite when there are fewer points than features. The estimate is biased upwards for small samples;
    compare systems at equal sizes only.

    Args:
        real: Real points, at least 2.
        synthetic: Synthetic points, at least 2, same features.
        shrinkage: Added to every variance, in squared latent units; the same on both sides.

    Raises:
        EvaluationError: Bad points or fewer than two.
    """
    real_points, synthetic_points = check_point_pair(real, synthetic, min_points=2)
    moments = []
    for points in (real_points.double(), synthetic_points.double()):
        # fidelity: frechet-shrinkage
        covariance = torch.atleast_2d(torch.cov(points.T))
        covariance = covariance + shrinkage * torch.eye(
            points.shape[1], dtype=points.dtype, device=points.device
        )
        moments += [points.mean(dim=0), covariance]
    return gaussian_frechet_distance(*moments)
