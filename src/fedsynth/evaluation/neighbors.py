"""Exact nearest neighbors and ball memberships in bounded memory: filter with a matrix product, then refine.

Notation: a, b points in R^d; S = ||a||² + ||b||² after centering; u the unit roundoff of the search dtype.

The product form ||a||² + ||b||² - 2 a·b is fast but cancels: its error is at most c S with c = (2 d + 16) u
(dot products of length d, their sum, and rounding of the centered points). So it only *filters*, through the
bounds ``lower = (1 - c) S - 2 a·b`` and ``upper = lower + 2 c S``; every distance that is returned or
compared is recomputed from differences of the original values in float64. Identical rows are therefore at
distance exactly 0, and results do not depend on the chunk size or on the search dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, PointSet, check_points, check_same_space

#: Elements of one block of the pairwise matrix (4 or 8 MB, about a cache): the only quadratic storage.
CHUNK_ELEMENTS = 1 << 20
#: Candidates beyond k that are refined at each precision before the next one is tried.
_EXTRA_CANDIDATES = {torch.float32: 3, torch.float64: 13}


@dataclass(frozen=True)
class Neighbors:
    """The nearest reference points of each query, nearest first."""

    distance: Float[Tensor, "query k"]
    index: Int[Tensor, "query k"]


class BallMembership(NamedTuple):
    """Who lies in which closed ball."""

    balls_per_query: Int[Tensor, " query"]
    queries_per_ball: Int[Tensor, " ball"]


@dataclass(frozen=True)
class _Filter:
    """Centered copies in the search dtype, scaled to norms <= 1 (no overflow), and their error bound."""

    query: Float[Tensor, "query d"]
    reference: Float[Tensor, "reference d"]
    query_norm: Float[Tensor, " query"]
    reference_norm: Float[Tensor, " reference"]
    scale: float
    error: float

    @classmethod
    def build(cls, query: Tensor, reference: Tensor, dtype: torch.dtype) -> _Filter:
        center = reference.mean(dim=0)
        query, reference = query - center, reference - center
        scale = max(float(query.norm(dim=1).max()), float(reference.norm(dim=1).max())) or 1.0
        query, reference = query / scale, reference / scale
        return cls(
            query=query.to(dtype),
            reference=reference.to(dtype),
            query_norm=query.square().sum(dim=1).to(dtype),
            reference_norm=reference.square().sum(dim=1).to(dtype),
            scale=scale,
            error=(2 * query.shape[1] + 16) * torch.finfo(dtype).eps,
        )

    def lower_bounds(self, rows: Tensor | slice) -> Float[Tensor, "row reference"]:
        """(1 - c) S - 2 a·b, in units of scale²; the absolute term covers underflow."""
        keep = 1 - self.error
        bound = torch.addmm(
            keep * self.reference_norm, self.query[rows], self.reference.T, alpha=-2.0
        )  # [row, reference]
        tiny = 4 * torch.finfo(bound.dtype).tiny
        return bound.add_((keep * self.query_norm[rows] - tiny).unsqueeze(1))


def pair_distances(
    first: Float[Tensor, "*pair d"], second: Float[Tensor, "*pair d"]
) -> Float[Tensor, "*pair"]:
    """||a - b|| of matching rows from differences, always by the same float64 summation order."""
    difference = (first.double() - second.double()).reshape(-1, first.shape[-1])
    return difference.square_().sum(dim=1).sqrt_().reshape(first.shape[:-1])


def _search_dtypes(query: Tensor, reference: Tensor) -> tuple[torch.dtype, ...]:
    """float32 first for float32 (or narrower) inputs on a CPU whose products are true float32.

    On CUDA, and under `torch.set_float32_matmul_precision("high")`, products may be TF32 or bfloat16, to
    which the error bound does not apply; there float64 alone is used.
    """
    is_single = torch.promote_types(query.dtype, reference.dtype) != torch.float64
    is_true_single = query.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    return (torch.float32, torch.float64) if is_single and is_true_single else (torch.float64,)


def _chunks(rows: Int[Tensor, " row"], width: int) -> Iterator[Int[Tensor, " chunk"]]:
    return iter(rows.split(max(1, CHUNK_ELEMENTS // max(1, width))))


def _refine(
    query: Tensor, reference: Tensor, rows: Tensor, candidates: Int[Tensor, "row m"], k: int
) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """The k nearest of each row's candidates, by exact distance; ties go to the lower index."""
    candidates = candidates.sort(dim=1).values
    exact = pair_distances(
        query[rows].unsqueeze(1).expand(-1, candidates.shape[1], -1), reference[candidates]
    )
    order = exact.sort(dim=1, stable=True).indices[:, :k]
    return exact.gather(1, order), candidates.gather(1, order)


def nearest_neighbors(
    query: PointSet, reference: PointSet | None = None, *, num_neighbors: int = 1
) -> Neighbors:
    """Exact Euclidean nearest neighbors, brute force in bounded memory.

    Args:
        query: Points whose neighbors are sought.
        reference: Where to look; None means among `query` itself, leaving each point out of its own list
            (a duplicate of it still counts, at distance 0).
        num_neighbors: k, at least 1 and at most the number of available points.

    Returns:
        Distances (float64, ascending) and row numbers in `reference`.

    Raises:
        EvaluationError: Bad points (see `checks.check_points`) or k out of range.
    """
    leave_one_out = reference is None
    query_points = check_points(query, "query")
    reference_points = query_points if reference is None else check_points(reference, "reference")
    check_same_space(query_points, reference_points, ("query", "reference"))
    available = len(reference_points) - leave_one_out
    if not 1 <= num_neighbors <= available:
        raise EvaluationError(
            f"num_neighbors must be in [1, {available}] for {len(reference_points)} reference points"
            f"{' (each point is left out of its own list)' if leave_one_out else ''}, got {num_neighbors}. "
            "Use a smaller k or more points."
        )
    dtypes = _search_dtypes(query_points, reference_points)
    query_points, reference_points = query_points.double(), reference_points.double()

    num_queries, device = len(query_points), query_points.device
    distance = torch.empty(num_queries, num_neighbors, dtype=torch.float64, device=device)
    index = torch.empty(num_queries, num_neighbors, dtype=torch.int64, device=device)
    pending = torch.arange(num_queries, device=device)
    for dtype in dtypes:
        search = _Filter.build(query_points, reference_points, dtype)
        width = min(available, num_neighbors + _EXTRA_CANDIDATES[dtype])
        uncertified = []
        for rows in _chunks(pending, max(len(reference_points), width * query_points.shape[1])):
            lower = search.lower_bounds(rows)  # [row, reference]
            if leave_one_out:
                lower[torch.arange(len(rows), device=device), rows] = torch.inf
            bound, candidates = lower.topk(width, dim=1, largest=False)
            distance[rows], index[rows] = _refine(
                query_points, reference_points, rows, candidates, num_neighbors
            )
            kth = distance[rows, -1]
            # No point outside the candidates can be nearer than the largest lower bound among them.
            is_exact = (bound[:, -1].double() * search.scale**2 >= kth.square()) | (kth == 0)
            uncertified.append(rows[~is_exact & (width < available)])
        pending = torch.cat(uncertified)
        if len(pending) == 0:
            break
    _search_directly(query_points, reference_points, pending, leave_one_out, distance, index)
    return Neighbors(distance=distance, index=index)


def _search_directly(
    query: Tensor, reference: Tensor, rows: Tensor, leave_one_out: bool, distance: Tensor, index: Tensor
) -> None:
    """Last resort for rows with many near-ties: all distances from differences, written in place."""
    for chunk in _chunks(rows, reference.numel()):
        exact = pair_distances(
            query[chunk].unsqueeze(1).expand(-1, len(reference), -1), reference.expand(len(chunk), -1, -1)
        )
        if leave_one_out:
            exact[torch.arange(len(chunk), device=exact.device), chunk] = torch.inf
        nearest = exact.topk(distance.shape[1], dim=1, largest=False)
        distance[chunk], index[chunk] = nearest.values, nearest.indices


def ball_membership(query: PointSet, centers: PointSet, radius: Float[Tensor, " ball"]) -> BallMembership:
    """Counts of ``||query - center|| <= radius``: closed balls, exact also on the boundary.

    Args:
        query: The points.
        centers: One ball each.
        radius: Ball radii, >= 0, in the units of the points.

    Returns:
        For each query the number of balls holding it, for each ball the number of queries in it.

    Raises:
        EvaluationError: Bad points, or radii that are not one non-negative number per center.
    """
    query_points, ball_points = check_points(query, "query"), check_points(centers, "centers")
    check_same_space(query_points, ball_points, ("query", "centers"))
    if radius.shape != (len(ball_points),) or not bool((radius >= 0).all()):
        raise EvaluationError(
            f"radius must hold one non-negative number per center, got shape {tuple(radius.shape)} for "
            f"{len(ball_points)} centers."
        )
    dtype = _search_dtypes(query_points, ball_points)[0]
    query_points, ball_points, radius = query_points.double(), ball_points.double(), radius.double()
    search = _Filter.build(query_points, ball_points, dtype)
    # Norms are at most 1 in units of scale, so a ball of radius 4 holds everything; larger ones could
    # overflow.
    limit = (radius / search.scale).clamp(max=4.0).square().to(dtype)  # [ball]
    sure_limit = limit - 2 * search.error * (search.reference_norm + search.query_norm.max())

    balls_per_query = torch.zeros(len(query_points), dtype=torch.int64, device=query_points.device)
    queries_per_ball = torch.zeros(len(ball_points), dtype=torch.int64, device=query_points.device)
    for rows in _chunks(torch.arange(len(query_points), device=query_points.device), len(ball_points)):
        lower = search.lower_bounds(rows)  # [row, ball]
        inside = lower <= sure_limit
        _settle(inside, lower <= limit, query_points[rows], ball_points, radius)
        balls_per_query[rows] = inside.sum(dim=1)
        queries_per_ball += inside.sum(dim=0)
    return BallMembership(balls_per_query=balls_per_query, queries_per_ball=queries_per_ball)


def _settle(
    inside: Bool[Tensor, "row ball"],
    possible: Bool[Tensor, "row ball"],
    query: Tensor,
    centers: Tensor,
    radius: Tensor,
) -> None:
    """Decide the pairs too near a ball's surface for the filter, in place."""
    row, ball = (possible & ~inside).nonzero(as_tuple=True)
    for part in torch.arange(len(row), device=row.device).split(max(1, CHUNK_ELEMENTS // centers.shape[1])):
        rows, balls = row[part], ball[part]
        inside[rows, balls] = pair_distances(query[rows], centers[balls]) <= radius[balls]
