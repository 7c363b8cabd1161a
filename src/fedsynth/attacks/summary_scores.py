"""Membership scores against released shard means, larger meaning "more likely a member".

Notation: h clipped candidate latent [d] of class c and client k; μ~_r released mean of shard r of that client
and class, from n_r records with noise of standard deviation σ_r; m_c, Σ_c mean and covariance of class c in
public (validation) latents. The adversary knows the candidate's class and client, not its shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, PointSet, as_tensor, check_integer, check_points

#: Names of the scores, in the order of `membership_scores`.
SCORES = ("matched_filter", "nearest_prototype", "likelihood_ratio")


class ReleasedMeans(NamedTuple):
    """What the server saw: one row a shard. A noise_std of 0 means released without noise."""

    means: Float[Tensor, "shard d"]
    noise_std: Float[Tensor, " shard"]
    counts: Int[Tensor, " shard"]
    labels: Int[Tensor, " shard"]
    clients: Int[Tensor, " shard"]


class Candidates(NamedTuple):
    """Records whose membership is in question."""

    latents: Float[Tensor, "candidate d"]
    labels: Int[Tensor, " candidate"]
    clients: Int[Tensor, " candidate"]


@dataclass(frozen=True)
class PublicReference:
    """Class moments from latents that were never released, e.g. the validation split."""

    means: Float[Tensor, "class d"]
    covariances: Float[Tensor, "class d d"]


def public_reference(latents: PointSet, labels: Int[Tensor, " n"], *, num_classes: int) -> PublicReference:
    """Mean and (unbiased) covariance of each class.

    Raises:
        EvaluationError: Bad points, no classes, or a class with fewer than two records.
    """
    num_classes = check_integer(num_classes, "num_classes", remedy="Two for normal and abnormal.")
    points, classes = check_points(latents, "latents").double(), as_tensor(labels, "labels")
    if classes.shape != points.shape[:1]:
        raise EvaluationError(
            f"labels must hold one class per latent ({len(points)}), got {tuple(classes.shape)}."
        )
    means, covariances = [], []
    for c in range(num_classes):
        members = points[classes == c]
        if len(members) < 2:
            raise EvaluationError(
                f"the public reference has {len(members)} records of class {c}, but needs 2. Use a larger "
                "validation split."
            )
        means.append(members.mean(dim=0))
        covariances.append(torch.atleast_2d(torch.cov(members.T)))
    return PublicReference(means=torch.stack(means), covariances=torch.stack(covariances))


def clip_latents(latents: Float[Tensor, "n d"], clip_radius: float) -> Float[Tensor, "n d"]:
    """h · min(1, C / ||h||), the public clipping rule (Eq. 18), which the adversary applies as well."""
    norm = latents.norm(dim=1, keepdim=True).clamp(min=torch.finfo(latents.dtype).tiny)
    return latents * (clip_radius / norm).clamp(max=1.0)


def filter_scale(released: ReleasedMeans) -> Float[Tensor, " shard"]:
    """σ_r of the matched filter: the noise_std, or without noise the spread between shards.

    The spread is the root mean square, over features, of the unbiased standard deviation of the shard means
    of the same client and class; a cell with a single shard takes that of all shards of its class, and a
    class with a single shard 1 (its scores then have no scale, only an order).
    """
    scale = released.noise_std.double().clone()
    for row in (scale == 0).nonzero()[:, 0].tolist():
        same_class = (released.labels == released.labels[row]) & (released.counts > 0)
        same_cell = same_class & (released.clients == released.clients[row])
        group = same_cell if int(same_cell.sum()) > 1 else same_class
        spread = 0.0
        if int(group.sum()) > 1:
            spread = float(released.means[group].double().var(dim=0, correction=1).mean().sqrt())
        scale[row] = spread or 1.0
    return scale


def _matched_filter(
    candidate: Float[Tensor, "i d"],
    mean: Float[Tensor, "r d"],
    count: Float[Tensor, " r"],
    scale: Float[Tensor, " r"],
) -> Float[Tensor, "i r"]:
    """<h - m_c, μ~_r - m_c> n_r / σ_r; both arguments already centered at m_c."""
    return (candidate @ mean.T) * (count / scale)


def _likelihood_ratio(
    candidate: Float[Tensor, "i d"],
    mean: Float[Tensor, "r d"],
    count: Float[Tensor, " r"],
    noise_std: Float[Tensor, " r"],
    variance: Float[Tensor, " d"],
) -> Float[Tensor, "i r"]:
    """log p(μ~_r | h in shard r) - log p(μ~_r | h not in it), in the eigenbasis of Σ_c with eigenvalues λ.

    Out: μ~ - m ~ N(0, λ/n + σ²). In: N((h - m)/n, λ (n-1)/n² + σ²), one of the n records being known.
    """
    n, noise = count.unsqueeze(1), noise_std.square().unsqueeze(1)  # [shard, 1]
    floor = 1e-12 * float(variance.max().clamp(min=1e-12))
    var_out = (variance / n + noise).clamp(min=floor)  # [shard, d]
    var_in = (variance * (n - 1) / n**2 + noise).clamp(min=floor)
    constant = (mean.square() / var_out - mean.square() / var_in + (var_out / var_in).log()).sum(dim=1)
    cross = candidate @ (mean / (n * var_in)).T
    quadratic = candidate.square() @ (1 / (n**2 * var_in)).T
    return constant / 2 + cross - quadratic / 2


def membership_scores(
    candidates: Candidates,
    released: ReleasedMeans,
    reference: PublicReference,
    *,
    combine: str = "sum",
) -> dict[str, Float[Tensor, " candidate"]]:
    """The three scores of every candidate, each combined over the shards of its own client and class.

    - ``matched_filter``: Σ_r (or max_r) <h - m_c, μ~_r - m_c> n_r / σ_r. Linear in the release and measured
      in noise standard deviations, so the mean gap between members and non-members falls as 1/σ.
    - ``nearest_prototype``: -min_r ||h - μ~_r||.
    - ``likelihood_ratio``: log mean_r exp(log-likelihood ratio of shard r), the optimal test for Gaussian
      latents with known m_c, Σ_c, the shard being unknown.

    Empty shards are skipped; a candidate whose client released nothing for its class scores 0, 0 and
    -inf-free worst distance (minus the largest distance to any mean), i.e. carries no evidence.

    Args:
        candidates: Already clipped, float64.
        released: All shards of all clients.
        reference: Public class moments.
        combine: "sum" or "max" over shards, for the matched filter.
    """
    if combine not in ("sum", "max"):
        raise EvaluationError(f"combine must be 'sum' or 'max', got {combine!r}.")
    released = ReleasedMeans(*(field[released.counts > 0] for field in released))
    scale, counts, noise_std = filter_scale(released), released.counts.double(), released.noise_std.double()
    result = {name: candidates.latents.new_zeros(len(candidates.latents)) for name in SCORES}
    for c in range(len(reference.means)):
        rows, shards = (candidates.labels == c).nonzero()[:, 0], (released.labels == c).nonzero()[:, 0]
        if len(rows) == 0 or len(shards) == 0:
            continue
        latents, means = candidates.latents[rows], released.means[shards].double()
        own: Bool[Tensor, "i r"] = candidates.clients[rows].unsqueeze(1) == released.clients[shards]
        centered, centered_means = latents - reference.means[c], means - reference.means[c]

        matched = _matched_filter(centered, centered_means, counts[shards], scale[shards])
        if combine == "sum":
            result["matched_filter"][rows] = torch.where(own, matched, 0.0).sum(dim=1)
        else:
            best = torch.where(own, matched, -torch.inf).max(dim=1).values
            result["matched_filter"][rows] = torch.where(own.any(dim=1), best, 0.0)

        distance = torch.cdist(latents, means)
        nearest = torch.where(own, distance, distance.max()).min(dim=1).values
        result["nearest_prototype"][rows] = -nearest

        eigenvalue, basis = torch.linalg.eigh(reference.covariances[c])
        ratio = _likelihood_ratio(
            centered @ basis,
            centered_means @ basis,
            counts[shards],
            noise_std[shards],
            eigenvalue.clamp(min=0),
        )
        evidence = torch.where(own, ratio, -torch.inf).logsumexp(dim=1) - own.sum(dim=1).double().log()
        result["likelihood_ratio"][rows] = torch.where(own.any(dim=1), evidence, 0.0)
    return result
