"""A release as an auditor repeats it: the one place that knows which variant a release artifact is.

The audit of shard means is about the whole release. That of moments is about its last two messages, the counts, sums
and second moments of every client and cell, in the frame that was published: radii, subspace and histogram stay
what they are, and are not attacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.attacks import Release, ReleasedMeans
from fedsynth.attacks.summary_scores import ReleasedSecondMoments
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import build_settings
from fedsynth.privacy.sensitivity import counted_sum_sensitivity
from fedsynth.prototypes import MomentFrame, MomentRelease, release_cell_moments, release_prototypes
from fedsynth.prototypes.shards import fixed_shards, merge_small_shards
from fedsynth.records import ShardRelease
from fedsynth.seeding import generator
from fedsynth.stages.release.moments import budget_of
from fedsynth.stages.release.spec import ReleaseSettings
from fedsynth.stages.release.stored import load_release

#: (latents, labels) -> (vectors, groups): the records as the release sees them, with equal noise in all directions.
View = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class AuditedRelease:
    """What an audit needs of a release, whatever its variant.

    Attributes:
        published: The release in latent space: one row per client and shard, or client and cell.
        clip_radius: C, in latent units.
        epsilon: ε of the release; ∞ without noise.
        at: From a budget to the same mechanism at that budget, as a function of records in the view.
        view: Latents and classes as vectors and groups, in which the attack happens. For shard means they are
            themselves; for moments the scaled coordinates and the cell of every record.
        num_groups: Groups of the view.
        view_radius: Bound on the norms of vectors in the view that the release clips to.
        noise_over_sensitivity: σ/Δ of the means: 1/μ of that part of the release; 0 without noise.
    """

    published: ReleasedMeans
    clip_radius: float
    epsilon: float
    at: Callable[[float], Release]
    view: View
    num_groups: int
    view_radius: float
    noise_over_sensitivity: float


def audited_release(artifact: Artifact) -> AuditedRelease:
    """The mechanism behind a release artifact, from its tensors and settings.

    A new variant of the release is added here and nowhere in the audit: return its own `at` and `view`.
    """
    release = load_release(artifact)
    if isinstance(release, MomentRelease):
        # A manifest spells an infinite ε in its own way; the record has the number.
        stored = dict(artifact.manifest["settings"]) | {"epsilon": release.epsilon}
        settings = build_settings(ReleaseSettings, stored, "release")
        return _audited_moments(release, settings)
    smallest = int(artifact.manifest["settings"]["min_shard_size"])
    published = published_means(release)
    ratios = published.noise_std.double() * published.counts / (2 * release.clip_radius)
    return AuditedRelease(
        published=published,
        clip_radius=release.clip_radius,
        epsilon=release.epsilon,
        at=lambda epsilon: _fixed_shard_means(release, epsilon, smallest),
        view=lambda latents, labels: (latents, labels),
        num_groups=release.means.shape[1],
        view_radius=release.clip_radius,
        noise_over_sensitivity=float(ratios.max()),
    )


def _audited_moments(release: MomentRelease, settings: ReleaseSettings) -> AuditedRelease:
    frame = release.frame

    def view(latents: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        cells = frame.cells(latents.double(), labels)
        return frame.coordinates(latents.double(), cells), cells

    return AuditedRelease(
        published=published_moments(release),
        clip_radius=frame.clip_radius,
        epsilon=release.epsilon,
        at=lambda epsilon: _cell_moments(
            frame, replace(settings, epsilon=epsilon), release.class_counts.shape[0]
        ),
        view=view,
        num_groups=len(frame.labels),
        view_radius=frame.coordinate_radius,
        noise_over_sensitivity=release.sum_std / counted_sum_sensitivity(frame.coordinate_radius),
    )


def _cell_moments(frame: MomentFrame, settings: ReleaseSettings, num_clients: int) -> Release:
    """Noisy sums over exact counts, and noisy second moments: the adversary knows how many records a cell has.

    Every client and cell is released, those that sit out as well: their messages were sent.
    """

    def releasing(vectors: Tensor, cells: Tensor, clients: Tensor, stream: torch.Generator) -> ReleasedMeans:
        budget = budget_of(settings, num_clients, _streams(stream))
        _, sums, second = release_cell_moments(vectors, cells, clients, frame, budget)
        num_cells = len(frame.labels)
        group = clients * num_cells + cells
        sizes = torch.bincount(group, minlength=num_clients * num_cells)
        rows = torch.nonzero(sizes).flatten()
        counts = sizes[rows].double()
        owners, groups = rows // num_cells, rows % num_cells
        moments = second.values.flatten(0, 1)[rows] / counts[:, None, None]
        position = torch.zeros_like(sizes)
        position[rows] = torch.arange(len(rows))
        return ReleasedMeans(
            sums.values.flatten(0, 1)[rows] / counts.unsqueeze(1),
            sums.std / counts,
            sizes[rows],
            groups,
            owners,
            shard_of_record=position[group],
            second_moments=ReleasedSecondMoments(moments, second.std / counts, sizes[rows], groups, owners),
        )

    return releasing


def published_moments(release: MomentRelease) -> ReleasedMeans:
    """One row per client and cell in latent space, those that take part only.

    The noise there is stretched along the directions of the frame; ``noise_std`` is its root mean square over the
    dimensions, so that its length is right.
    """
    frame = release.frame
    counts = release.counts.round().clamp_min(1)
    means = frame.origin + frame.scale * release.sums / counts.unsqueeze(-1)
    stretch = frame.scale.square().sum(dim=1).sqrt() / frame.basis.shape[0] ** 0.5  # [cell]
    used = release.participates[:, frame.labels]
    client, cell = used.nonzero(as_tuple=True)
    return ReleasedMeans(
        (means @ frame.basis.T)[used],
        (release.sum_std / counts * stretch)[used],
        counts[used].long(),
        frame.labels[cell],
        client,
    )


def _fixed_shard_means(release: ShardRelease, epsilon: float, min_shard_size: int) -> Release:
    """The paper's release: noisy means of fixed shards, exact variances and counts, public shard rule."""
    num_clients, num_classes, num_shards, _ = release.means.shape

    def releasing(latents: Tensor, labels: Tensor, clients: Tensor, stream: torch.Generator) -> ReleasedMeans:
        record_ids = torch.arange(len(labels))
        made = release_prototypes(
            latents,
            labels,
            clients,
            record_ids,
            num_clients=num_clients,
            num_classes=num_classes,
            num_shards=num_shards,
            clip_radius=release.clip_radius,
            epsilon=epsilon,
            delta=release.delta,
            min_shard_size=min_shard_size,
            seed_generator=_streams(stream),
        )
        shards, _ = merge_small_shards(
            fixed_shards(record_ids, labels, clients, num_shards),
            labels,
            clients,
            num_shards=num_shards,
            min_shard_size=min_shard_size,
        )
        cell = (clients * num_classes + labels) * num_shards + shards
        return published_means(made, cell)

    return releasing


def _streams(stream: torch.Generator) -> Callable[[int], torch.Generator]:
    root = int(torch.randint(2**62, (), generator=stream))
    return lambda client: generator(root, "attacked-release", client)


def published_means(
    release: ShardRelease, cell_of_record: Int64[Tensor, " n"] | None = None
) -> ReleasedMeans:
    """One row per occupied shard, as an adversary sees a release.

    Args:
        release: The release.
        cell_of_record: The flat index (client, class, shard) of every released record, if the rule is public.
    """
    occupied = release.counts > 0
    client, label, _ = occupied.nonzero(as_tuple=True)
    row = occupied.flatten().cumsum(0) - 1  # flat index → row
    return ReleasedMeans(
        release.means[occupied],
        release.noise_std[occupied],
        release.counts[occupied],
        label,
        client,
        shard_of_record=None if cell_of_record is None else row[cell_of_record],
        variances=release.variances[occupied],
    )
