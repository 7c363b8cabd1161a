"""Fixed shards and their statistics: FedDP-PALD Eq. (18).

A *cell* is one (client, class) pair; its records are dealt to R_p shards by the rank of their id, never by
their values. Under fixed-size, label-preserving replace-one adjacency the assignment is therefore the same
for neighboring data, each record lies in exactly one shard, and the shards compose in parallel.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.privacy.parameters import check_count
from fedsynth.records import InvalidTensorError, check_indices, check_tensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardMerge:
    """One small shard that was joined to another of its cell. Depends on counts only."""

    client: int
    label: int
    source: int
    target: int
    source_size: int


class ShardStatistics(NamedTuple):
    """Exact, unprotected statistics of every shard; zeros where a shard is empty."""

    means: Float[Tensor, "client class shard dim"]
    variances: Float[Tensor, "client class shard dim"]
    counts: Int64[Tensor, "client class shard"]


def fixed_shards(
    record_ids: Int64[Tensor, " n"],
    labels: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    num_shards: int,
) -> Int64[Tensor, " n"]:
    """The shard of every record: rank of its id within its (client, class) cell, modulo R_p.

    Independent of the latents and of the order of the records.

    Args:
        record_ids: Stable ids, unique within a cell; a record is the pair of image and ECG.
        labels: Class c of each record.
        clients: Client k of each record.
        num_shards: R_p ≥ 1.

    Raises:
        InvalidTensorError: For unequal lengths, other dtypes than int64, or an id that occurs twice in a
            cell (its rank would depend on the order of the records).
    """
    num_shards = check_count(num_shards, "num_shards")
    check_indices(record_ids=record_ids, labels=labels, clients=clients)
    ids, cells = record_ids.cpu().numpy(), np.stack([labels.cpu().numpy(), clients.cpu().numpy()])
    order = np.lexsort((ids, *cells))  # by client, then class, then id
    ids, cells = ids[order], cells[:, order]
    is_first = np.ones(len(ids), dtype=bool)
    is_first[1:] = (cells[:, 1:] != cells[:, :-1]).any(axis=0)
    repeated = ~is_first[1:] & (ids[1:] == ids[:-1])
    if repeated.any():
        raise InvalidTensorError(
            f"record_ids must be unique within a client and class, but id {ids[1:][repeated][0]} occurs "
            "again. Shards are fixed by the rank of the id; number the records once, before training."
        )
    position = np.arange(len(ids))
    start = np.maximum.accumulate(np.where(is_first, position, 0))  # where the record's cell begins
    shards = torch.empty(len(ids), dtype=torch.int64)
    # fidelity: fixed-shards
    shards[torch.from_numpy(order)] = torch.from_numpy((position - start) % num_shards)
    return shards.to(record_ids.device)


def merge_small_shards(
    shards: Int64[Tensor, " n"],
    labels: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    *,
    num_shards: int,
    min_shard_size: int,
) -> tuple[Int64[Tensor, " n"], tuple[ShardMerge, ...]]:
    """Join every shard of fewer than ``min_shard_size`` records to the next non-empty shard of its cell.

    The next shard is found cyclically and by counts alone, so that neighboring data are merged alike. An
    empty shard stays empty (it gets no mass). A whole cell below the minimum ends as one shard that keeps
    its size, and its larger noise. Merges are returned and logged.

    Raises:
        InvalidTensorError: For unequal lengths, other dtypes, or a shard index out of range.
    """
    num_shards = check_count(num_shards, "num_shards")
    min_shard_size = check_count(min_shard_size, "min_shard_size")
    check_indices(shards=shards, labels=labels, clients=clients)
    _check_range(shards, "shards", num_shards)
    merged, merges = shards.clone(), []
    for client, label in _occupied_cells(clients, labels):
        in_cell = (clients == client) & (labels == label)
        sizes = torch.bincount(shards[in_cell], minlength=num_shards).tolist()
        for source, target, size in _merge_plan(sizes, min_shard_size):
            merged[in_cell & (merged == source)] = target
            merges.append(ShardMerge(client, label, source, target, size))
    if merges:
        logger.info(
            "%d shards with fewer than %d records were joined to the next one of their client and class: %s",
            len(merges),
            min_shard_size,
            "; ".join(f"client {m.client} class {m.label}: {m.source}→{m.target}" for m in merges),
        )
    return merged, tuple(merges)


def _occupied_cells(clients: Int64[Tensor, " n"], labels: Int64[Tensor, " n"]) -> list[tuple[int, int]]:
    """(client, class) of every cell that holds a record, ascending."""
    if len(labels) == 0:
        return []
    # One number per cell: unique over rows takes ten times as long, and an audit asks for it hundreds of times.
    lowest = int(labels.min())
    width = int(labels.max()) - lowest + 1
    cells = torch.unique(clients * width + (labels - lowest)).tolist()
    return [(cell // width, cell % width + lowest) for cell in cells]


def _merge_plan(sizes: list[int], minimum: int) -> list[tuple[int, int, int]]:
    """(source, target, source size) of every merge in a cell, from its shard sizes alone."""
    # fidelity: small-shards
    sizes = list(sizes)
    plan: list[tuple[int, int, int]] = []
    while True:
        occupied = [shard for shard, size in enumerate(sizes) if size > 0]
        small = [shard for shard in occupied if sizes[shard] < minimum]
        if not small or len(occupied) == 1:
            return plan
        source = small[0]
        target = occupied[(occupied.index(source) + 1) % len(occupied)]
        plan.append((source, target, sizes[source]))
        sizes[target], sizes[source] = sizes[target] + sizes[source], 0


def shard_statistics(
    latents: Float[Tensor, "n dim"],
    shards: Int64[Tensor, " n"],
    labels: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    *,
    num_clients: int,
    num_classes: int,
    num_shards: int,
) -> ShardStatistics:
    """Mean, diagonal population variance and size of every shard, in float64.

    Implements the mean of FedDP-PALD Eq. (18) and the local covariance that Eq. (24) needs. A shard of one
    record has variance 0, an empty one mean, variance and count 0. Nothing here is protected.

    Raises:
        InvalidTensorError: For wrong shapes or dtypes, or an index outside the given numbers.
    """
    latents = check_tensor(latents, "latents", ndim=2).double()
    check_indices(shards=shards, labels=labels, clients=clients, num_records=len(latents))
    sizes = (
        check_count(num_clients, "num_clients"),
        check_count(num_classes, "num_classes"),
        check_count(num_shards, "num_shards"),
    )
    _check_range(clients, "clients", sizes[0])
    _check_range(labels, "labels", sizes[1])
    _check_range(shards, "shards", sizes[2])
    cell = (clients * sizes[1] + labels) * sizes[2] + shards  # [n]
    num_cells = sizes[0] * sizes[1] * sizes[2]
    counts = torch.bincount(cell, minlength=num_cells)
    divisor = counts.clamp_min(1).unsqueeze(1)  # [cell, 1]
    zeros = latents.new_zeros(num_cells, latents.shape[1])
    means = zeros.index_add(0, cell, latents) / divisor
    variances = zeros.index_add(0, cell, (latents - means[cell]).square()) / divisor
    shape = (*sizes, latents.shape[1])
    return ShardStatistics(means.reshape(shape), variances.reshape(shape), counts.reshape(sizes))


def _check_range(index: Tensor, name: str, limit: int) -> None:
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < limit):
        raise InvalidTensorError(
            f"{name} must lie in [0, {limit}), got values from {int(index.min())} to {int(index.max())}."
        )
