"""From noisy moments to a mixture with full covariance in the released subspace. Post-processing: costs nothing."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.privacy.parameters import PrivacyParameterError
from fedsynth.prototypes.moment_record import MomentRelease
from fedsynth.records import Mixture

# Scaled units: a variance there is about 1, κ² at most.
_SMALLEST_VARIANCE = 1e-3
# Below so many noisy records a cell's moments would be divided by noise.
_SMALLEST_CELL = 10.0


def mixture_from_moments(release: MomentRelease, *, floor: float = 1e-6) -> Mixture:
    """One component per cell, with covariance v I + F Fᵀ in latent units.

    Per cell, over the clients that take part: mean m = Σ sums / N and covariance Σ second moments / N - m mᵀ + s² I,
    where s² is the known noise of the mean, which m mᵀ contains. The covariance is shrunk to that of its class
    (:func:`shrink_covariances`), taken back to latent units, and raised in every direction to v, the variance left
    outside the subspace (at least ``floor``). Classes with fewer cells get components of weight 0.

    Args:
        release: Of all clients.
        floor: Smallest variance, > 0, in squared latent units.

    Raises:
        PrivacyParameterError: If the floor is not positive and finite.
    """
    if not 0 < floor < math.inf:
        raise PrivacyParameterError(f"floor must be a finite number > 0, got {floor!r}. Typical: 1.0e-6.")
    frame, labels = release.frame, release.frame.labels
    counts, means, covariances, noise = pooled_moments(release)
    for label in torch.unique(labels).tolist():
        own = labels == label
        covariances[own] = shrink_covariances(covariances[own], counts[own], noise[own])
    residual = max(release.residual_variance, floor)
    centers = (frame.origin + frame.scale * means) @ frame.basis.T  # [cell, dim]
    scaled = covariances * frame.scale.unsqueeze(2) * frame.scale.unsqueeze(1)
    values, vectors = torch.linalg.eigh(scaled)
    factors = frame.basis @ (
        vectors * (values - residual).clamp_min(0).sqrt().unsqueeze(1)
    )  # [cell, dim, rank]
    num_classes = release.class_counts.shape[1]
    width = int(labels.bincount(minlength=num_classes).max())
    dim, rank = frame.basis.shape
    weights = torch.zeros(num_classes, width, dtype=torch.float64)
    means = torch.zeros(num_classes, width, dim, dtype=torch.float64)
    padded = torch.zeros(num_classes, width, dim, rank, dtype=torch.float64)
    for label in range(num_classes):
        own = torch.nonzero(labels == label).flatten()
        weights[label, : len(own)] = counts[own] / counts[own].sum()
        means[label, : len(own)], padded[label, : len(own)] = centers[own], factors[own]
    return Mixture(weights, means, torch.full_like(means, residual), padded)


def pooled_moments(
    release: MomentRelease,
) -> tuple[
    Float[Tensor, " cell"],
    Float[Tensor, "cell rank"],
    Float[Tensor, "cell rank rank"],
    Float[Tensor, " cell"],
]:
    """Counts, means, covariances in scaled coordinates over participating clients, and the covariances' noise.

    The covariance is unbiased as long as no bound is met: a mean is kept inside the ball of radius κ that every
    record lies in, and a count does not fall below 10. The noise is that of a diagonal entry.
    """
    used = release.participates[:, release.frame.labels].double()  # [client, cell]
    counts = (release.counts * used).sum(dim=0).clamp_min(_SMALLEST_CELL)
    means = (release.sums * used.unsqueeze(-1)).sum(dim=0) / counts.unsqueeze(-1)
    senders = used.sum(dim=0).sqrt()
    mean_noise = release.sum_std * senders / counts
    second = (release.second_moments * used[..., None, None]).sum(dim=0) / counts[:, None, None]
    identity = torch.eye(means.shape[1], dtype=torch.float64)
    covariances = second - means.unsqueeze(2) * means.unsqueeze(1)
    covariances = covariances + mean_noise.square()[:, None, None] * identity
    norms = means.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    means = means * (release.frame.coordinate_radius / norms).clamp_max(1)
    return counts, means, covariances, release.second_moment_std * senders / counts


def shrink_covariances(
    covariances: Float[Tensor, "cell rank rank"],
    counts: Float[Tensor, " cell"],
    noise: Float[Tensor, " cell"],
) -> Float[Tensor, "cell rank rank"]:
    """Each covariance moved toward the class's mean covariance by its noise share, then made positive definite.

    The share is min(1, E‖noise‖_F² / ‖covariance - mean‖_F²), E‖noise‖_F² = σ² rank (rank + 1) / 2: all of it when the
    difference is what noise alone would make, none without noise. Eigenvalues are raised to 1e-3.

    Args:
        covariances: Of the cells of one class, symmetric, maybe indefinite.
        counts: Their masses, > 0.
        noise: σ of a diagonal entry, 1/√2 of it off the diagonal.
    """
    rank = covariances.shape[-1]
    share = (counts / counts.sum())[:, None, None]
    pooled = _positive((share * covariances).sum(dim=0))
    distance = (covariances - pooled).square().sum(dim=(1, 2))
    expected = noise.square() * rank * (rank + 1) / 2
    weight = torch.where(distance > 0, expected / distance, 1.0).clamp_max(1)[:, None, None]
    return _positive(weight * pooled + (1 - weight) * covariances)


def _positive(matrices: Float[Tensor, "... rank rank"]) -> Float[Tensor, "... rank rank"]:
    values, vectors = torch.linalg.eigh((matrices + matrices.mT) / 2)
    return (vectors * values.clamp_min(_SMALLEST_VARIANCE).unsqueeze(-2)) @ vectors.mT
