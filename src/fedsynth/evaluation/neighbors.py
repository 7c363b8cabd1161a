"""Exact nearest neighbors by brute force, in bounded memory: filter with a matrix product, then refine.

The filter and why it is exact: `fedsynth.evaluation.pairwise`. A point is refined from its few candidates
with the smallest lower bounds, first by float32 and, where that does not settle it, by float64 products; what
remains (near-ties) is settled by the exact distance of every pair that could still be nearer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.candidates import search_among_reference, search_among_themselves
from fedsynth.evaluation.checks import (
    EvaluationError,
    PointSet,
    check_integer,
    check_points,
    check_same_space,
)
from fedsynth.evaluation.pairwise import CHUNK_ELEMENTS, Filter, chunks, pair_distances, search_dtypes

__all__ = ["CHUNK_ELEMENTS", "Neighbors", "nearest_neighbors"]

#: Candidates beyond k that are refined at each precision before the next one is tried.
_EXTRA_CANDIDATES = {torch.float32: 1, torch.float64: 13}


@dataclass(frozen=True)
class Neighbors:
    """The nearest reference points of each query, nearest first."""

    distance: Float[Tensor, "query k"]
    index: Int[Tensor, "query k"]


def nearest_neighbors(
    query: PointSet, reference: PointSet | None = None, *, num_neighbors: int = 1
) -> Neighbors:
    """Exact Euclidean nearest neighbors, brute force in bounded memory.

    The distances are those of a direct float64 computation from differences. Among equal distances the lower
    row number comes first; when more points tie at the k-th distance than there is room for, which of them
    are listed is deterministic but otherwise unspecified.

    Args:
        query: Points whose neighbors are sought; any floating dtype.
        reference: Where to look; None means among `query` itself, leaving each point out of its own list
            (a duplicate of it still counts, at distance 0).
        num_neighbors: k, at least 1 and at most the number of available points.

    Returns:
        Distances (float64, ascending) and row numbers in `reference`, on the device of the points.

    Raises:
        EvaluationError: Bad points (see `checks.check_points`) or k out of range.
    """
    leave_one_out = reference is None
    query_points = check_points(query, "query")
    reference_points = query_points if reference is None else check_points(reference, "reference")
    check_same_space(query_points, reference_points, ("query", "reference"))
    num_neighbors = check_integer(num_neighbors, "num_neighbors")
    available = len(reference_points) - leave_one_out
    if num_neighbors > available:
        raise EvaluationError(
            f"num_neighbors must be in [1, {available}] for {len(reference_points)} reference points"
            f"{' (each point is left out of its own list)' if leave_one_out else ''}, got {num_neighbors}. "
            "Use a smaller k or more points."
        )
    found = Neighbors(
        distance=query_points.new_empty(len(query_points), num_neighbors, dtype=torch.float64),
        index=query_points.new_empty(len(query_points), num_neighbors, dtype=torch.int64),
    )
    pending = torch.arange(len(query_points), device=query_points.device)
    for dtype in search_dtypes(query_points.device):
        search = Filter.build(query_points, reference_points, dtype)
        pending = _search(search, query_points, reference_points, pending, leave_one_out, found)
        if len(pending) == 0:
            return found
    _settle_near_ties(search, query_points, reference_points, pending, leave_one_out, found)
    return found


def _search(
    search: Filter, query: Tensor, reference: Tensor, rows: Tensor, leave_one_out: bool, found: Neighbors
) -> Int[Tensor, " uncertified"]:
    """Fill in `rows` of `found` from candidates; returns those whose candidates may not be the nearest."""
    k, available = found.distance.shape[1], len(reference) - leave_one_out
    width = min(available, k + _EXTRA_CANDIDATES[search.query.norm.dtype])
    if leave_one_out and len(rows) == len(query):
        candidates = search_among_themselves(search, width)
    else:
        own = rows if leave_one_out else None
        everything = len(rows) == len(query)
        candidates = search_among_reference(
            search, search.query if everything else search.query[rows], width, own
        )
    order = candidates.bound[: len(rows)].sort(dim=1)
    bound = order.values.double().mul_(search.scale**2)
    index = candidates.index[: len(rows)].gather(1, order.indices)
    # Mostly the k smallest bounds are those of the k nearest points; only where not, all candidates are refined.
    waiting = torch.arange(len(rows), device=rows.device)
    for num_refined in sorted({k, width}):
        for part in chunks(waiting, num_refined * query.shape[1]):
            _refine(query, reference, rows[part], index[part, :num_refined], found)
        if num_refined == available:
            return rows[:0]
        kth = found.distance[rows[waiting], -1]
        # No point further down the list is nearer than its lower bound, nor one that is not on it.
        least = bound[waiting, min(num_refined, width - 1)]
        waiting = waiting[(least < kth.square()) & (kth > 0)]
    return rows[waiting]


def _refine(
    query: Tensor, reference: Tensor, rows: Tensor, candidates: Int[Tensor, "row m"], found: Neighbors
) -> None:
    """Write the k nearest of each row's candidates, by exact distance; ties go to the lower index."""
    candidates = candidates.sort(dim=1).values
    exact = pair_distances(
        query[rows].unsqueeze(1).expand(-1, candidates.shape[1], -1), reference[candidates]
    )
    order = exact.sort(dim=1, stable=True).indices[:, : found.distance.shape[1]]
    found.distance[rows], found.index[rows] = exact.gather(1, order), candidates.gather(1, order)


def _settle_near_ties(
    search: Filter, query: Tensor, reference: Tensor, rows: Tensor, leave_one_out: bool, found: Neighbors
) -> None:
    """Exact distances to all points whose lower bound does not exceed the k-th distance found so far."""
    k = found.distance.shape[1]
    for part in chunks(rows, len(reference)):
        bound = search.lower_bounds(search.query[part], search.reference) * search.scale**2
        if leave_one_out:
            bound[torch.arange(len(part), device=part.device), part] = torch.inf
        line, index = (bound <= found.distance[part, -1:].square()).nonzero(as_tuple=True)
        pairs = zip(chunks(line, query.shape[1]), chunks(index, query.shape[1]), strict=True)
        exact = torch.cat([pair_distances(query[part[i]], reference[j]) for i, j in pairs])
        order = exact.sort(stable=True).indices
        order = order[line[order].sort(stable=True).indices]  # by query, then distance, then row number
        count = torch.bincount(line, minlength=len(part))
        first = (count.cumsum(0) - count).unsqueeze(1) + torch.arange(k, device=part.device)
        found.distance[part], found.index[part] = exact[order[first]], index[order[first]]
