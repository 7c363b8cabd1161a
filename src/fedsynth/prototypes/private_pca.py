"""A low-dimensional subspace of latents, paid for: principal components by deflation.

| symbol | name               | meaning                                                              |
|--------|--------------------|----------------------------------------------------------------------|
| V      | basis              | orthonormal columns found so far                                     |
| E      | residual           | latents without their part in V, clipped to C_j                      |
| C_j    | radii              | private radius of round j                                            |
| s      | –                  | noise of an off-diagonal entry of the pooled mean of E Eᵀ             |

Round j publishes Σ E Eᵀ with symmetric Gaussian noise. Noise alone has a largest eigenvalue near 2 s √d (the edge of
the semicircle), so only directions above that join V. Latents are nearly collapsed: the first direction holds most of
the energy, without it the radius is several times smaller, and the noise falls with its square. That is why
several rounds find directions that one round with the whole budget does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.errors import PrivacyError
from fedsynth.privacy.budget import GaussianBudget, Noisy
from fedsynth.privacy.clipping import clip_to_radius
from fedsynth.privacy.parameters import check_count, check_positive
from fedsynth.privacy.quantile import RadiusGrid, private_radius
from fedsynth.privacy.sensitivity import second_moment_sensitivity
from fedsynth.records import check_indices, check_tensor

# Of the squared radius: what is smaller is rounding.
_RELATIVE_FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class PrivateSubspace:
    """What the rounds have found.

    Attributes:
        basis: V; columns in the order found, at least one.
        eigenvalues: Noisy second moment along each column, in squared latent units, > 0.
        radii: C_j; latents are clipped to the first.
        residual_variance: Mean second moment per direction outside V, ≥ 0; unbiased up to that bound.
    """

    basis: Float[Tensor, "dim rank"]
    eigenvalues: Float[Tensor, " rank"]
    radii: Float[Tensor, " round"]
    residual_variance: float


def private_subspace(
    latents: Float[Tensor, "n dim"],
    clients: Int64[Tensor, " n"],
    budget: GaussianBudget,
    *,
    grid: RadiusGrid,
    quantile: float,
    slack: float,
    num_rounds: int,
    max_rank: int,
    noise_edge: float,
) -> PrivateSubspace:
    """Principal directions of the uncentered second moment, over all clients and classes.

    Pays ``num_rounds`` x ``grid.num_steps`` releases of the part ``radius`` and ``num_rounds`` of ``subspace``.
    Labels are not used.

    Args:
        latents: Of all clients, unclipped.
        clients: Client of each record.
        budget: Who pays.
        grid: Public candidates for the radii.
        quantile: C_j is about this quantile of residual norms times ``slack``.
        slack: ≥ some positive number; more than 1 clips less.
        num_rounds: ≥ 1.
        max_rank: Most directions to keep, ≥ 1.
        noise_edge: Directions must rise above this multiple of 2 s √d.

    Raises:
        PrivacyError: If a radius cannot be paid for, or no direction of the first round rises above the noise.
        InvalidTensorError: For bad latents or clients.
        PrivacyParameterError: For a number out of range.
    """
    latents = check_tensor(latents, "latents", ndim=2).double()
    check_indices(num_records=len(latents), clients=clients)
    check_positive(slack, "slack")
    check_positive(noise_edge, "noise_edge")
    num_rounds, max_rank = check_count(num_rounds, "num_rounds"), check_count(max_rank, "max_rank")
    dim = latents.shape[1]
    basis, eigenvalues = latents.new_zeros(dim, 0), latents.new_zeros(0)
    radii: list[float] = []
    residual_variance = 0.0
    for _ in range(num_rounds):
        room = min(max_rank, dim) - basis.shape[1]
        if room == 0 and basis.shape[1] == dim:
            break  # nothing is left; what is not spent protects
        residual = latents - (latents @ basis) @ basis.T
        norms = residual.norm(dim=1)
        found = private_radius(norms, clients, budget, "radius", quantile=quantile, grid=grid)
        radii.append(found.radius * slack)
        residual = clip_to_radius(residual, radii[-1])
        if len(radii) == 1:
            latents = residual  # everything later is about clipped latents
        moment, noise = _pooled_second_moment(residual, clients, budget, radii[-1])
        values, vectors = _spectrum_outside(moment, basis)
        threshold = max(noise_edge * 2 * math.sqrt(dim) * noise, _RELATIVE_FLOOR * radii[0] ** 2)
        num_new = min(int((values > threshold).sum()), room)
        if num_new == 0 and basis.shape[1] == 0:
            raise PrivacyError(
                f"No direction of the latents rises above the noise: the largest eigenvalue is {values[0]:.4g}, "
                f"noise alone reaches {threshold:.4g} ({budget.num_clients} clients, {len(latents)} records, "
                f"epsilon={budget.epsilon:g}). Raise epsilon or the share of the subspace, or use fewer clients."
            )
        basis = torch.cat([basis, vectors[:, :num_new]], dim=1)
        eigenvalues = torch.cat([eigenvalues, values[:num_new]])
        left = values[num_new:]
        residual_variance = max(0.0, float(left.mean())) if len(left) else 0.0
    return PrivateSubspace(basis, eigenvalues, torch.tensor(radii, dtype=torch.float64), residual_variance)


def _pooled_second_moment(
    residual: Float[Tensor, "n dim"], clients: Int64[Tensor, " n"], budget: GaussianBudget, radius: float
) -> tuple[Float[Tensor, "dim dim"], float]:
    """Mean of e eᵀ over all records, noised by every client, and the noise of an off-diagonal entry."""
    local = torch.stack(
        [residual[clients == client].T @ residual[clients == client] for client in range(budget.num_clients)]
    )
    noisy: Noisy = budget.release_symmetric("subspace", local, second_moment_sensitivity(radius))
    noise = noisy.std * math.sqrt(budget.num_clients / 2) / len(residual)
    return noisy.values.sum(dim=0) / len(residual), noise


def _spectrum_outside(
    moment: Float[Tensor, "dim dim"], basis: Float[Tensor, "dim rank"]
) -> tuple[Float[Tensor, " left"], Float[Tensor, "dim left"]]:
    """Eigenvalues, largest first, and eigenvectors of the moment on the complement of the basis."""
    complement = torch.linalg.qr(torch.cat([basis, torch.eye(len(moment), dtype=moment.dtype)], dim=1))[0]
    complement = complement[:, basis.shape[1] :]  # [dim, left]
    values, vectors = torch.linalg.eigh(complement.T @ moment @ complement)
    return values.flip(0), complement @ vectors.flip(1)
