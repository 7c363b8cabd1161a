"""Membership scores of adversaries who know the population: exact moments of the very client and class.

Threat models, each with the release and the clipping rule, from weak to strong:

- `population_likelihood_ratio`: knows mean, covariance and size of the records of the candidate's client and class
  (members and held-out records together, so the candidate itself, in or out, is among them);
- `known_shard_likelihood_ratio`: and which shard the candidate would be in. Fixed shards follow from record
  numbers, so whoever knows the number of a record knows its shard;
- `published_likelihood_ratio`: and reads everything published: the shard's variances too where they are released
  (`moment_scores.variance_likelihood_ratio`); otherwise the same as the one before;
- `informed`: and every other record of the shard, and the one record h' that stands in the candidate's place if
  the candidate is out. That is the adversary of the definition of differential privacy, under replace-one adjacency:
  an upper bound on what any of the above can do with the means, not a realistic attack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks.mean_ratio import RELATIVE_FLOOR, mean_likelihood_ratio
from fedsynth.attacks.summary_scores import Candidates, ReleasedMeans

#: Names of the scores here; the last three need `ReleasedMeans.shard_of_record`.
POPULATION_SCORES = (
    "population_likelihood_ratio",
    "known_shard_likelihood_ratio",
    "published_likelihood_ratio",
    "informed",
)


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of a finite set of vectors, as eigenvalues and eigenvectors (columns of `basis`)."""

    mean: Float[Tensor, " d"]
    eigenvalue: Float[Tensor, " d"]
    basis: Float[Tensor, "d d"]
    size: float

    def project(self, vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return (vectors - self.mean) @ self.basis


def moments_of(vectors: Float[Tensor, "n d"], *, is_exhaustive: bool = True) -> Moments:
    """Exact moments (covariance over n - 1; zero for a single vector).

    Args:
        vectors: In float64.
        is_exhaustive: Whether the release was drawn from these very vectors (without replacement); False
            takes them for a sample of an infinite population.
    """
    mean = vectors.mean(dim=0)
    centered = vectors - mean
    eigenvalue, basis = torch.linalg.eigh(centered.T @ centered / max(len(vectors) - 1, 1))
    size = float(len(vectors)) if is_exhaustive else float("inf")
    return Moments(mean, eigenvalue.clamp(min=0), basis, size)


@dataclass(frozen=True)
class Cell:
    """What the adversary knows of one client and class.

    Attributes:
        latents: Moments of the clipped latents.
        scale: Standard deviation of every coordinate; 1 where that is zero.
        squares: Moments of ((h - mean) / scale)², coordinate by coordinate.
    """

    client: int
    label: int
    latents: Moments
    scale: Float[Tensor, " d"]
    squares: Moments

    def squared(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return ((latents - self.latents.mean) / self.scale).square()


def population_of(records: Candidates, *, is_exhaustive: bool = True) -> tuple[Cell, ...]:
    """The exact moments of every client and class among clipped records, in float64."""
    cells = []
    for client, label in torch.unique(torch.stack([records.clients, records.labels], dim=1), dim=0).tolist():
        inside = records.latents[(records.clients == client) & (records.labels == label)]
        latents = moments_of(inside, is_exhaustive=is_exhaustive)
        spread = (inside - latents.mean).square().mean(dim=0).sqrt()
        scale = torch.where(spread > 0, spread, 1.0)
        squares = moments_of(((inside - latents.mean) / scale).square(), is_exhaustive=is_exhaustive)
        cells.append(Cell(client, label, latents, scale, squares))
    return tuple(cells)


def population_scores(
    candidates: Candidates,
    own_shard: Int[Tensor, " candidate"] | None,
    released: ReleasedMeans,
    population: tuple[Cell, ...],
) -> dict[str, Float[Tensor, " candidate"]]:
    """`population_likelihood_ratio`, and with `own_shard` also `known_shard_likelihood_ratio`.

    With an unknown shard the ratio is log Σ_r (n_r / Σ n) exp(ratio of shard r) over the shards of the cell. A
    candidate of a cell without a population or without a released shard scores 0, no evidence either way.

    Args:
        candidates: Clipped, float64.
        own_shard: The row of `released.means` that each candidate would be in.
        released: All shards of all clients.
        population: From `population_of`.
    """
    unknown = candidates.latents.new_zeros(len(candidates.latents))
    known = unknown.clone()
    for cell in population:
        rows = ((candidates.clients == cell.client) & (candidates.labels == cell.label)).nonzero()[:, 0]
        shards = shards_of(released, cell)
        if len(rows) == 0 or len(shards) == 0:
            continue
        counts = released.counts[shards].double()
        ratio = mean_likelihood_ratio(
            cell.latents.project(candidates.latents[rows]),
            cell.latents.project(released.means[shards].double()),
            counts,
            released.noise_std[shards].double(),
            cell.latents.eigenvalue,
            population_size=cell.latents.size,
        )
        unknown[rows] = (ratio + (counts / counts.sum()).log()).logsumexp(dim=1)
        if own_shard is not None:
            known[rows] = pick(ratio, shards, own_shard[rows])
    scores = {"population_likelihood_ratio": unknown}
    return scores if own_shard is None else scores | {"known_shard_likelihood_ratio": known}


def shards_of(released: ReleasedMeans, cell: Cell) -> Int[Tensor, " r"]:
    """Rows of the occupied shards of a client and class."""
    is_own = (released.clients == cell.client) & (released.labels == cell.label) & (released.counts > 0)
    return is_own.nonzero()[:, 0]


def pick(
    ratio: Float[Tensor, "i r"], shards: Int[Tensor, " r"], own: Int[Tensor, " i"]
) -> Float[Tensor, " i"]:
    """Each candidate's ratio at its own shard; 0 where that shard is not among them."""
    is_own = own.unsqueeze(1) == shards.unsqueeze(0)
    return torch.where(is_own, ratio, 0.0).sum(dim=1)


def informed_scores(
    members: Float[Tensor, "pair d"],
    non_members: Float[Tensor, "pair d"],
    own_shard: Int[Tensor, " pair"],
    exact_means: Float[Tensor, "shard d"],
    released: ReleasedMeans,
) -> Float[Tensor, " two_pairs"]:
    """log p(μ~ | h, h' out) - log p(μ~ | h', h out), both hypotheses being known exactly.

    Every record of the shard but one is known, and that one is h or h': μ~ ~ N(μ, σ²) or N(μ + (h' - h)/n, σ²). The
    ratio is that of two Gaussians at a distance of ||h - h'|| / n, so d' = ||h - h'|| / (n σ) ≤ Δ / σ. Without
    noise the two are told apart with certainty (σ is floored at 1e-9 of the distance).

    Returns:
        Scores of members, then of non-members.
    """
    count = released.counts[own_shard].double()
    step = (members - non_members) / count.unsqueeze(1)  # mean with h minus mean with h'
    distance = step.norm(dim=1)
    std = torch.maximum(released.noise_std[own_shard].double(), 1e-9 * distance).clamp(min=RELATIVE_FLOOR)
    excess = released.means[own_shard].double() - exact_means[own_shard]  # the noise, or what is left of it
    ratio = ((excess + step / 2) * step).sum(dim=1) / std.square()
    return torch.cat([ratio, -ratio])
