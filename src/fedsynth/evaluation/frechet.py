"""Fréchet distance between two point sets seen as Gaussians."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.evaluation.checks import (
    MAX_MAGNITUDE,
    EvaluationError,
    PointSet,
    as_tensor,
    check_number,
    check_point_pair,
    check_same_space,
    require_finite,
)

#: Asymmetry and negative eigenvalues that rounding float32 moments leaves, relative to the largest entry.
_TOLERANCE = 1e-5


def _symmetric_sqrt(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    eigenvalue, vector = torch.linalg.eigh(covariance)
    return (vector * eigenvalue.clamp(min=0).sqrt()) @ vector.T


def _check_moments(mean: Tensor, covariance: Tensor, name: str) -> tuple[Tensor, Tensor]:
    vector, matrix = (
        as_tensor(mean, f"{name}_mean").double(),
        as_tensor(covariance, f"{name}_covariance").double(),
    )
    if vector.ndim != 1 or len(vector) == 0 or matrix.shape != (len(vector), len(vector)):
        raise EvaluationError(
            f"{name}_mean and {name}_covariance must have shapes [d] and [d, d], got {tuple(vector.shape)} and "
            f"{tuple(matrix.shape)}."
        )
    require_finite(vector, f"{name}_mean")
    require_finite(matrix, f"{name}_covariance")
    size = float(matrix.abs().max())
    least = float(torch.linalg.eigvalsh(matrix).min())
    if float((matrix - matrix.T).abs().max()) > _TOLERANCE * size or least < -_TOLERANCE * size * len(vector):
        raise EvaluationError(
            f"{name}_covariance must be symmetric and positive semidefinite, got a smallest eigenvalue of "
            f"{least:g}. Floor the eigenvalues of a noise-corrected covariance first."
        )
    return vector, matrix


def gaussian_frechet_distance(
    first_mean: Float[Tensor, " d"],
    first_covariance: Float[Tensor, "d d"],
    second_mean: Float[Tensor, " d"],
    second_covariance: Float[Tensor, "d d"],
) -> float:
    """||m1 - m2||² + Tr(S1 + S2 - 2 (S1 S2)^{1/2}) (Dowson & Landau 1982), a *squared* distance as in FID.

    The trace of the root is that of (S1^{1/2} S2 S1^{1/2})^{1/2}, i.e. the sum of the singular values of
    S1^{1/2} S2^{1/2}. Taking them directly avoids the complex roots of a general matrix square root and the
    root of rounding errors; the tiny negative results rounding can leave are clamped to 0, and so are the
    tiny negative eigenvalues of a covariance.

    Raises:
        EvaluationError: Shapes that do not fit, values that are not finite, or a covariance that is not
            symmetric and positive semidefinite.
    """
    m1, s1 = _check_moments(first_mean, first_covariance, "first")
    m2, s2 = _check_moments(second_mean, second_covariance, "second")
    check_same_space(m1.unsqueeze(0), m2.unsqueeze(0), ("first_mean", "second_mean"))
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
        EvaluationError: Bad points, fewer than two, or a shrinkage that is no number >= 0.
    """
    shrinkage = check_number(shrinkage, "shrinkage", low=0.0, high=MAX_MAGNITUDE)
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
