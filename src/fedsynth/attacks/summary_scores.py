"""Membership scores against released shard means, larger meaning "more likely a member".

Notation: h clipped candidate latent [d] of class c and client k; μ~_r released mean of shard r of that client
and class, from n_r records with noise of standard deviation σ_r; m_c, Σ_c mean and covariance of class c in
public (validation) latents. The adversary knows the candidate's class and client, not its shard. Adversaries who
know more are in `population_scores`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks.mean_ratio import mean_likelihood_ratio
from fedsynth.evaluation.checks import (
    EvaluationError,
    PointSet,
    check_class_index,
    check_generator,
    check_integer,
    check_number,
    check_points,
)

#: Names of the scores of an adversary with public moments, in the order of `membership_scores`.
SCORES = ("matched_filter", "nearest_prototype", "likelihood_ratio")


class ReleasedSecondMoments(NamedTuple):
    """Noisy second moments E[h hᵀ], one row for whatever group of records a release averages over."""

    moments: Float[Tensor, "group d d"]
    noise_std: Float[Tensor, " group"]
    counts: Int[Tensor, " group"]
    labels: Int[Tensor, " group"]
    clients: Int[Tensor, " group"]


class ReleasedMeans(NamedTuple):
    """What the server saw: one row a shard. A noise_std of 0 means released without noise.

    The optional fields open further attacks (`population_scores`, `moment_scores`):

    Attributes:
        means, noise_std, counts, labels, clients: Of every shard.
        shard_of_record: The row of `means` that each released record went into, if the rule is public (fixed
            shards are: they follow from record numbers). None if shards are secret or chosen from the data.
        variances: Diagonal of the population covariance of every shard, if published **without noise**.
        second_moments: If published with noise.
    """

    means: Float[Tensor, "shard d"]
    noise_std: Float[Tensor, " shard"]
    counts: Int[Tensor, " shard"]
    labels: Int[Tensor, " shard"]
    clients: Int[Tensor, " shard"]
    shard_of_record: Int[Tensor, " released"] | None = None
    variances: Float[Tensor, "shard d"] | None = None
    second_moments: ReleasedSecondMoments | None = None


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

    @cached_property
    def eigenvectors(self) -> list[tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]]:
        """Eigenvalues (not negative) and eigenvectors of every covariance."""
        pairs = (torch.linalg.eigh(covariance) for covariance in self.covariances)
        return [(value.clamp(min=0), vector) for value, vector in pairs]


def public_reference(latents: PointSet, labels: Int[Tensor, " n"], *, num_classes: int) -> PublicReference:
    """Mean and (unbiased) covariance of each class.

    Raises:
        EvaluationError: Bad points, no classes, or a class with fewer than two records.
    """
    num_classes = check_integer(num_classes, "num_classes", remedy="Two for normal and abnormal.")
    points = check_points(latents, "latents").double()
    classes = check_class_index(labels, num_classes, len(points), "labels")
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


def check_attack_settings(
    releases: Mapping[str, object],
    clip_radius: float,
    num_repetitions: int,
    generator: torch.Generator,
    reference: PublicReference,
) -> None:
    """Refuse settings that no attack on summaries can run with, before any record is drawn.

    Raises:
        EvaluationError: Naming the argument and the value.
    """
    if not isinstance(releases, Mapping) or not releases or not all(map(callable, releases.values())):
        raise EvaluationError(
            "releases must name at least one release, a function of (latents, labels, clients, generator), "
            f"e.g. {{'epsilon=4': release}}, got {str(releases)[:60]}."
        )
    check_number(clip_radius, "clip_radius", low=0.0, is_open=True, remedy="Use that of the release.")
    check_integer(num_repetitions, "num_repetitions", remedy="The usual value is 100.")
    check_generator(generator)
    if not isinstance(reference, PublicReference):
        raise EvaluationError(f"reference must come from public_reference, got {type(reference).__name__}.")


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
    scale = filter_scale(released)
    result = {name: candidates.latents.new_zeros(len(candidates.latents)) for name in SCORES}
    num_classes = len(reference.means)
    for cell in torch.unique(candidates.clients * num_classes + candidates.labels).tolist():
        client, label = divmod(cell, num_classes)
        rows = ((candidates.clients == client) & (candidates.labels == label)).nonzero()[:, 0]
        same_class = (released.labels == label) & (released.counts > 0)
        shards = (same_class & (released.clients == client)).nonzero()[:, 0]
        latents = candidates.latents[rows]
        if len(shards) == 0:
            means = released.means[same_class].double()
            if len(means):
                result["nearest_prototype"][rows] = -torch.cdist(latents, means).max()
            continue
        means, counts = released.means[shards].double(), released.counts[shards].double()
        centered, centered_means = latents - reference.means[label], means - reference.means[label]
        matched = _matched_filter(centered, centered_means, counts, scale[shards])
        result["matched_filter"][rows] = matched.sum(dim=1) if combine == "sum" else matched.max(dim=1).values
        result["nearest_prototype"][rows] = -torch.cdist(latents, means).min(dim=1).values
        eigenvalue, basis = reference.eigenvectors[label]
        ratio = mean_likelihood_ratio(
            centered @ basis,
            centered_means @ basis,
            counts,
            released.noise_std[shards].double(),
            eigenvalue,
        )
        result["likelihood_ratio"][rows] = ratio.logsumexp(dim=1) - math.log(len(shards))
    return result
