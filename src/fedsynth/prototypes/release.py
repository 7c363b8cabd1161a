"""The differentially private release of shard means: FedDP-PALD Eqs. (18)-(21)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.privacy.clipping import clip_to_radius
from fedsynth.privacy.gaussian import analytic_gaussian_std
from fedsynth.privacy.ledger import LedgerEntry
from fedsynth.privacy.mechanism import add_gaussian_noise, client_generators
from fedsynth.privacy.parameters import check_count, check_delta, check_epsilon
from fedsynth.privacy.sensitivity import Adjacency, shard_mean_sensitivity
from fedsynth.prototypes.shards import fixed_shards, merge_small_shards, shard_statistics
from fedsynth.records import ShardRelease, check_indices

COVERED = "noisy means of clipped latents in fixed shards, per client and class"
NOT_COVERED = (
    "client, class and shard counts",
    "within-shard variances",
    "the clipping radius, when it is taken from validation records",
    "the encoder's weights and every update exchanged while training it",
    "validation records used for thresholds or checkpoint choice",
    "a patient who contributes several records (the unit is one image-ECG pair)",
)


def release_prototypes(
    latents: Float[Tensor, "n dim"],
    labels: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    record_ids: Int64[Tensor, " n"],
    *,
    num_clients: int,
    num_classes: int,
    num_shards: int,
    clip_radius: float,
    epsilon: float,
    delta: float,
    min_shard_size: int,
    seed_generator: Callable[[int], torch.Generator],
) -> ShardRelease:
    """Noisy shard means of every client and class; (ε, δ)-DP for one record under replace-one adjacency.

    Implements FedDP-PALD Eqs. (18)-(21): clip, deal to fixed shards, average, add Gaussian noise calibrated
    to Δ = 2C/n. Each record lies in exactly one shard, so the whole release costs one record one (ε, δ)
    (parallel composition).

    Covered: the means. NOT covered: counts, variances, C when it comes from validation records, and the
    encoder, which was trained on the same records without noise. The unit of privacy is one record, the
    pair of an image and an ECG; a patient, or an ECG paired with several images, can touch many records
    and has a larger ε.

    Args:
        latents: One per record, any floating dtype; clipped, averaged and noised on the CPU in float64.
        labels: Class of each record.
        clients: Client of each record. A client without records of a class gets counts, means and noise 0.
        record_ids: Stable ids, unique within a client and class; they alone fix the shards.
        num_clients: K.
        num_classes: Number of classes.
        num_shards: R_p, shards per client and class.
        clip_radius: C, in latent units.
        epsilon: ε in [0, ∞]; ∞ releases the exact means.
        delta: δ in (0, 1).
        min_shard_size: Smaller shards are joined to the next one, by count only.
        seed_generator: From a client's index to that client's own CPU generator. It must also depend on
            the release: the same stream for two values of ε would let anyone eliminate the noise.

    Raises:
        PrivacyParameterError: For a scalar out of range.
        InvalidTensorError: For wrong shapes or dtypes, non-finite latents, or indices out of range.
        PrivacyError: If two clients' generators are in the same state, so that they would share noise.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    num_clients = check_count(num_clients, "num_clients")
    clipped = clip_to_radius(latents, clip_radius).cpu()
    check_indices(num_records=len(clipped), labels=labels, clients=clients, record_ids=record_ids)
    labels, clients, record_ids = labels.cpu(), clients.cpu(), record_ids.cpu()
    shards = fixed_shards(record_ids, labels, clients, num_shards)
    shards, _ = merge_small_shards(
        shards, labels, clients, num_shards=num_shards, min_shard_size=min_shard_size
    )
    # Summing in the order of the ids makes the result independent of the order of the records, bit for bit.
    order = torch.argsort(record_ids, stable=True)
    statistics = shard_statistics(
        clipped[order],
        shards[order],
        labels[order],
        clients[order],
        num_clients=num_clients,
        num_classes=num_classes,
        num_shards=num_shards,
    )
    noise_std = _noise_std(statistics.counts, clip_radius, epsilon, delta)
    generators = client_generators(num_clients, seed_generator)
    means = torch.stack(
        [
            add_gaussian_noise(statistics.means[client], noise_std[client].unsqueeze(-1), generators[client])
            for client in range(num_clients)
        ]
    )  # Eq. (20), [client, class, shard, dim]
    return ShardRelease(
        means=means,
        variances=statistics.variances,  # fidelity: unprotected-covariance
        counts=statistics.counts,
        noise_std=noise_std,
        clip_radius=float(clip_radius),
        epsilon=epsilon,
        delta=delta,
    )


def release_ledger_entry(release: ShardRelease, *, stage: str) -> LedgerEntry:
    """The ledger entry of a release: its price, what is covered and what is not."""
    occupied = release.counts > 0
    num_releases = int(occupied.sum())
    sensitivities = 2 * release.clip_radius / release.counts[occupied].double()
    if not math.isfinite(release.epsilon) or num_releases == 0:
        return LedgerEntry.without_guarantee(
            stage=stage, published=(f"{COVERED}, without noise", *NOT_COVERED), num_releases=num_releases
        )
    noise_std = release.noise_std[occupied]
    return LedgerEntry(
        stage=stage,
        mechanism="analytic Gaussian",
        epsilon=release.epsilon,
        delta=release.delta,
        adjacency=Adjacency.REPLACE_ONE,
        covered=COVERED,
        not_covered=NOT_COVERED,
        num_releases=num_releases,
        sensitivity_range=(float(sensitivities.min()), float(sensitivities.max())),
        noise_std_range=(float(noise_std.min()), float(noise_std.max())),
    )


def _noise_std(
    counts: Int64[Tensor, "client class shard"], clip_radius: float, epsilon: float, delta: float
) -> Float[Tensor, "client class shard"]:
    """σ_{k,c,r} of Eq. (21) for the sensitivity of Eq. (19); 0 for empty shards."""
    noise_std = torch.zeros(counts.shape, dtype=torch.float64)
    for size in torch.unique(counts[counts > 0]).tolist():
        sensitivity = shard_mean_sensitivity(clip_radius, size)
        noise_std[counts == size] = analytic_gaussian_std(epsilon, delta, sensitivity)
    return noise_std
