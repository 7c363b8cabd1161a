"""Matching the components of different clients: FedDP-PALD Eqs. (22)-(23).

Shard r of one client has nothing to do with shard r of another. Only noisy means enter the matching, so it
is post-processing and costs no privacy.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int64
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedsynth.records import InvalidTensorError, ShardRelease, check_tensor


def align(
    reference: Float[Tensor, "shard dim"],
    prototypes: Float[Tensor, "shard dim"],
    *,
    reference_occupied: Bool[Tensor, " shard"] | None = None,
    prototypes_occupied: Bool[Tensor, " shard"] | None = None,
) -> Int64[Tensor, " shard"]:
    """The permutation ρ that matches ``prototypes[ρ]`` to ``reference`` at least total squared distance.

    Implements FedDP-PALD Eq. (22): ρ = argmin Σ_r ‖reference[r] - prototypes[ρ(r)]‖₂², solved exactly
    (Hungarian method). Ties are broken deterministically.

    Empty components take no part: the occupied ones are matched among themselves first, as many as there
    are on the smaller side; what is left over is then paired in ascending order of index. An empty
    component has no mass, so its partner stays as it is.

    Args:
        reference: Means of the reference client.
        prototypes: Means of the client to be permuted.
        reference_occupied: False where the reference has no records; all True when None.
        prototypes_occupied: False where the client has no records; all True when None.

    Raises:
        InvalidTensorError: If the two are not finite floating tensors of the same shape [shard, dim] with
            at least one shard, or a mask does not have one entry per shard.
    """
    reference = check_tensor(reference, "reference", ndim=2).double().cpu()
    prototypes = check_tensor(prototypes, "prototypes", ndim=2).double().cpu()
    if reference.shape != prototypes.shape or len(reference) == 0:
        raise InvalidTensorError(
            f"reference and prototypes must have the same shape [shard, dim] with at least one shard, got "
            f"{tuple(reference.shape)} and {tuple(prototypes.shape)}."
        )
    num_shards = len(reference)
    rows = _occupied(reference_occupied, "reference_occupied", num_shards)
    columns = _occupied(prototypes_occupied, "prototypes_occupied", num_shards)
    # Differences, not ‖a‖² + ‖b‖² - 2ab: nothing cancels when all means are close to each other.
    cost = (reference[rows, None] - prototypes[None, columns]).square().sum(dim=-1)
    # fidelity: alignment-cost
    matched_rows, matched_columns = linear_sum_assignment(cost.numpy())
    permutation = torch.full((num_shards,), -1, dtype=torch.int64)
    permutation[rows[matched_rows]] = columns[matched_columns]
    unused = [shard for shard in range(num_shards) if shard not in set(permutation.tolist())]
    permutation[permutation < 0] = torch.tensor(unused, dtype=torch.int64)
    return permutation


def align_release(release: ShardRelease) -> ShardRelease:
    """Every client's shards in the order of the reference client of each class: Eqs. (22)-(23).

    The reference of class c is the client with the most records of it, k*_c = argmax_k n_{k,c}; of equals
    the one with the smallest index. Means, variances, counts and noise levels are permuted together.
    """
    mass = release.counts.sum(dim=-1)  # [client, class]
    num_clients, num_classes = mass.shape
    order = torch.arange(release.counts.shape[2]).repeat(num_clients, num_classes, 1)  # identity
    for label in range(num_classes):
        largest = int(torch.nonzero(mass[:, label] == mass[:, label].max())[0, 0])
        for client in range(num_clients):
            if client == largest or mass[client, label] == 0:
                continue
            order[client, label] = align(
                release.means[largest, label],
                release.means[client, label],
                reference_occupied=release.counts[largest, label] > 0,
                prototypes_occupied=release.counts[client, label] > 0,
            )
    wide = order.unsqueeze(-1).expand(release.means.shape)
    return replace(
        release,
        means=release.means.gather(2, wide),
        variances=release.variances.gather(2, wide),
        counts=release.counts.gather(2, order),
        noise_std=release.noise_std.gather(2, order),
    )


def _occupied(mask: Tensor | None, name: str, num_shards: int) -> Int64[Tensor, " occupied"]:
    if mask is None:
        return torch.arange(num_shards)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != (num_shards,):
        raise InvalidTensorError(f"{name} must be a boolean tensor with one entry per shard ({num_shards}).")
    return torch.nonzero(mask.cpu()).flatten()
