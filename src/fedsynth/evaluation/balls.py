"""Who lies in which closed ball, counted exactly in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation import pairwise
from fedsynth.evaluation.checks import EvaluationError, PointSet, as_tensor, check_points, check_same_space
from fedsynth.evaluation.pairwise import Filter, chunks, pair_distances, search_dtypes, slices

#: Points of one tile against each other.
_WIDTH = 4096


class BallMembership(NamedTuple):
    """Who lies in which closed ball."""

    balls_per_query: Int[Tensor, " query"]
    queries_per_ball: Int[Tensor, " ball"]


def ball_membership(query: PointSet, centers: PointSet, radius: Float[Tensor, " ball"]) -> BallMembership:
    """Counts of ``||query - center|| <= radius``: closed balls, exact also on the boundary.

    Args:
        query: The points.
        centers: One ball each.
        radius: Ball radii, >= 0 (`inf` holds everything), in the units of the points.

    Returns:
        For each query the number of balls holding it, for each ball the number of queries in it.

    Raises:
        EvaluationError: Bad points, or radii that are not one non-negative number per center.
    """
    query_points, ball_points = check_points(query, "query"), check_points(centers, "centers")
    check_same_space(query_points, ball_points, ("query", "centers"))
    radii = _check_radius(radius, ball_points, "radius", "center")
    search = Filter.build(query_points, ball_points, search_dtypes(query_points.device)[0])
    counter = _Counter(query_points, ball_points, search, radii, swapped=False)
    for rows, columns, bound in _tiles(search):
        counter.count(rows, columns, bound)
    return BallMembership(balls_per_query=counter.per_row, queries_per_ball=counter.per_column)


def mutual_ball_membership(
    first: PointSet, first_radius: Float[Tensor, " n"], second: PointSet, second_radius: Float[Tensor, " m"]
) -> tuple[BallMembership, BallMembership]:
    """Memberships of `first` points in balls around `second`, and of `second` points in balls around `first`.

    The same as two calls of `ball_membership`, from one pass over the pairs.

    Raises:
        EvaluationError: Bad points or radii.
    """
    points, others = check_points(first, "first"), check_points(second, "second")
    check_same_space(points, others, ("first", "second"))
    radii = _check_radius(first_radius, points, "first_radius", "point of first")
    other_radii = _check_radius(second_radius, others, "second_radius", "point of second")
    search = Filter.build(points, others, search_dtypes(points.device)[0])
    in_second = _Counter(points, others, search, other_radii, swapped=False)
    in_first = _Counter(others, points, search, radii, swapped=True)
    for rows, columns, bound in _tiles(search):
        in_second.count(rows, columns, bound)
        in_first.count(columns, rows, bound.T)
    return (
        BallMembership(balls_per_query=in_second.per_row, queries_per_ball=in_second.per_column),
        BallMembership(balls_per_query=in_first.per_row, queries_per_ball=in_first.per_column),
    )


def _check_radius(radius: Tensor, centers: Tensor, name: str, of: str) -> Float[Tensor, " ball"]:
    values = as_tensor(radius, name)
    if values.shape != (len(centers),) or values.dtype == torch.bool or not bool((values >= 0).all()):
        raise EvaluationError(
            f"{name} must hold one non-negative number per {of}, got shape {tuple(values.shape)} for "
            f"{len(centers)} of them{', some negative or NaN' if values.shape == (len(centers),) else ''}."
        )
    if values.device != centers.device:
        raise EvaluationError(
            f"{name} must be on the device of the points, got {values.device} and {centers.device}. "
            "Move it with .to(device)."
        )
    return values.double()


def _tiles(search: Filter) -> Iterator[tuple[slice, slice, Float[Tensor, "row column"]]]:
    """(row slice, column slice, lower bounds) of every tile of query × reference."""
    num_columns = min(_WIDTH, len(search.reference))
    num_rows = min(len(search.query), max(1, pairwise.CHUNK_ELEMENTS // num_columns))
    buffer = search.query.norm.new_empty(num_rows * num_columns)
    for rows in slices(len(search.query), num_rows):
        for columns in slices(len(search.reference), num_columns):
            yield rows, columns, search.lower_bounds(search.query[rows], search.reference[columns], buffer)


class _Counter:
    """Counts memberships of row points in the balls around column points, a tile at a time.

    A pair is surely inside when its upper bound is within the radius, and possibly when its lower bound is;
    pairs in between are decided by exact distances.
    """

    def __init__(
        self, points: Tensor, centers: Tensor, search: Filter, radius: Tensor, *, swapped: bool
    ) -> None:
        self.points, self.centers, self.radius = points, centers, radius
        rows, columns = (search.reference, search.query) if swapped else (search.query, search.reference)
        dtype, eps = rows.norm.dtype, torch.finfo(rows.norm.dtype).eps
        # Norms are at most 1 in units of scale, so a ball of radius 4 holds everything; larger ones could
        # overflow. Widened and narrowed by more than the radius is rounded.
        limit = (radius / search.scale).clamp(max=4.0).square()
        self.possible = (limit * (1 + 4 * eps) + search.underflow).to(dtype)
        gap = 2 * search.error * (1 + 4 * search.error) * (columns.norm.double() + float(rows.norm.max()))
        self.sure = (limit * (1 - 4 * eps) - gap - 4 * search.underflow).to(dtype)
        self.per_row = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        self.per_column = torch.zeros(len(centers), dtype=torch.int64, device=points.device)
        self._mask = rows.norm.new_empty(0)

    def count(self, rows: slice, columns: slice, bound: Float[Tensor, "row column"]) -> None:
        """Add the counts of one tile of lower bounds."""
        in_row, in_column = self._sums(bound, self.possible[columns])
        sure_in_row, _ = self._sums(bound, self.sure[columns])
        self.per_row[rows] += in_row
        self.per_column[columns] += in_column
        open_rows = (in_row != sure_in_row).nonzero()[:, 0]
        for part in chunks(open_rows, bound.shape[1]):
            self._settle(part, rows.start, columns, bound[part])

    def _sums(self, bound: Tensor, limit: Tensor) -> tuple[Int[Tensor, " row"], Int[Tensor, " column"]]:
        """How many of each row and column of `bound` are <= the column's limit.

        Zeros and ones in the dtype of the bounds, summed by matrix products, are far faster than booleans; a
        tile is small enough for the sums to be exact.
        """
        if self._mask.numel() < bound.numel():
            self._mask = bound.new_empty(bound.numel())
        mask = self._mask[: bound.numel()]
        mask = mask.view(bound.shape) if bound.is_contiguous() else mask.view(bound.T.shape).T
        torch.le(bound, limit, out=mask)
        ones = mask.new_ones(max(mask.shape))
        return (mask @ ones[: mask.shape[1]]).long(), (ones[: mask.shape[0]] @ mask).long()

    def _settle(self, part: Tensor, first_row: int, columns: slice, bound: Tensor) -> None:
        """Take back the possible pairs of the tile's rows `part` that are outside."""
        is_open = (bound <= self.possible[columns]) & (bound > self.sure[columns])
        row, ball = is_open.nonzero(as_tuple=True)
        row, ball = part[row] + first_row, ball + columns.start
        for i, j in zip(chunks(row, self.points.shape[1]), chunks(ball, self.points.shape[1]), strict=True):
            outside = (pair_distances(self.points[i], self.centers[j]) > self.radius[j]).long()
            self.per_row.index_add_(0, i, -outside)
            self.per_column.index_add_(0, j, -outside)
