"""Membership scores against what a release says beyond means: variances without noise, noisy second moments."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks.mean_ratio import mean_likelihood_ratio
from fedsynth.attacks.population_scores import Cell, pick, shards_of
from fedsynth.attacks.summary_scores import Candidates, ReleasedMeans, ReleasedSecondMoments
from fedsynth.evaluation.checks import EvaluationError

#: Names of the scores here. The first needs published variances, the second published second moments.
MOMENT_SCORES = ("variance_likelihood_ratio", "second_moment_filter")

# Squares of nearly collapsed latents are nearly collinear; directions below this are fitted noise. Chosen on
# stored latents of the paper's experiment, where 1e-8 and 1e-4 were weaker.
_SQUARES_FLOOR = 1e-6


def variance_likelihood_ratio(
    candidates: Candidates,
    own_shard: Int[Tensor, " candidate"] | None,
    released: ReleasedMeans,
    population: tuple[Cell, ...],
) -> Float[Tensor, " candidate"]:
    """The ratio of `mean_likelihood_ratio` for the d shard variances, as means of squared deviations.

    FedDP-PALD publishes the diagonal covariance of every shard without noise (for Eq. 24). A variance times
    n / (n - 1) is nearly the mean of (h - m)² over the shard, so a candidate's square is looked for in it, whitened by
    the covariance of squares in the population. Noise on the means does not weaken this attack.

    Not exact: the shard mean is taken for the population mean (an error of order 1 / n), and means of squares
    for Gaussian. Without `own_shard` the shards are averaged as in `population_scores`. A candidate whose
    cell has no shard of two records scores 0.
    """
    if released.variances is None:
        raise EvaluationError("released.variances is None: this release publishes no variances to attack.")
    result = candidates.latents.new_zeros(len(candidates.latents))
    for cell in population:
        rows = ((candidates.clients == cell.client) & (candidates.labels == cell.label)).nonzero()[:, 0]
        shards = shards_of(released, cell)
        shards = shards[released.counts[shards] > 1]  # one record has variance 0 whatever it is
        if len(rows) == 0 or len(shards) == 0:
            continue
        counts = released.counts[shards].double()
        unbiased = released.variances[shards].double() * (counts / (counts - 1)).unsqueeze(1)
        ratio = mean_likelihood_ratio(
            cell.squares.project(cell.squared(candidates.latents[rows])),
            cell.squares.project(unbiased / cell.scale.square()),
            counts,
            torch.zeros_like(counts),
            cell.squares.eigenvalue,
            population_size=cell.squares.size,
            relative_floor=_SQUARES_FLOOR,
        )
        if own_shard is None:
            result[rows] = (ratio + (counts / counts.sum()).log()).logsumexp(dim=1)
        else:
            result[rows] = pick(ratio, shards, own_shard[rows])
    return result


def second_moment_filter(
    candidates: Candidates, released: ReleasedSecondMoments, population: tuple[Cell, ...]
) -> Float[Tensor, " candidate"]:
    """Σ_g <h hᵀ - M, M~_g - M> n_g / σ_g over the groups g of the candidate's client and class.

    M is the exact second moment of the population of that client and class. Linear in the release and measured
    in noise standard deviations, like the matched filter of the means; optimal for isotropic noise that
    outweighs the spread between groups. Groups without noise count as if σ were 1.
    """
    result = candidates.latents.new_zeros(len(candidates.latents))
    for cell in population:
        rows = ((candidates.clients == cell.client) & (candidates.labels == cell.label)).nonzero()[:, 0]
        is_own = (released.clients == cell.client) & (released.labels == cell.label) & (released.counts > 0)
        basis, eigenvalue, size = cell.latents.basis, cell.latents.eigenvalue, cell.latents.size
        share = 1 - 1 / size  # the covariance is over N - 1, the moment over N
        expected = basis @ torch.diag(eigenvalue * share) @ basis.T + torch.outer(
            cell.latents.mean, cell.latents.mean
        )
        for group in is_own.nonzero()[:, 0].tolist():
            std = float(released.noise_std[group]) or 1.0
            excess = (released.moments[group].double() - expected) * (float(released.counts[group]) / std)
            latents = candidates.latents[rows]
            result[rows] += ((latents @ excess) * latents).sum(dim=1) - (expected * excess).sum()
    return result
