"""The smallest lower bounds of every point, found tile by tile without ever storing all pairs.

Selecting from a tile is dearer than computing it, so a tile is first reduced to the minima of groups of
`GROUP` elements. The w smallest elements of a row lie in groups whose minimum is no larger than the w-th
smallest minimum; and once earlier tiles gave w candidates, in groups below the worst of those. Only these
few groups are looked into.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation import pairwise
from fedsynth.evaluation.pairwise import Filter, Side, slices

#: Elements whose minimum is taken together.
GROUP = 64
#: Side of a square tile, and the largest width of a tile of queries against references; multiples of `GROUP`.
_TILE, _WIDTH = 2048, 8192
#: Rows with more hits than this many times the width (ties) are selected from in the plain way.
_CROWDED = 4


class Candidates:
    """For every point the `width` smallest bounds offered so far and whose they are, in no order."""

    def __init__(self, num_points: int, width: int, like: Tensor) -> None:
        self.bound = torch.full((num_points, width), torch.inf, dtype=like.dtype, device=like.device)
        self.index = torch.zeros((num_points, width), dtype=torch.int64, device=like.device)
        self.worst = self.bound[:, 0].clone()

    def offer(self, start: int, bound: Float[Tensor, "row column"], first_column: int) -> None:
        """Take the smallest of `bound`, whose rows are the points from `start` and whose columns the others
        from `first_column`; their number is a multiple of `GROUP`.
        """
        width, groups = self.bound.shape[1], bound.shape[1] // GROUP
        grouped = bound.unflatten(1, (groups, GROUP))  # [row, group, member]
        if bound.is_contiguous():
            smallest = grouped.amin(dim=2)
        else:  # a transposed tile, reduced along its memory
            smallest = bound.T.unflatten(0, (groups, GROUP)).amin(dim=1).T.contiguous()
        limit = self.worst[start : start + len(bound)]
        if groups >= width and bool(limit.isinf().any()):
            at_most = smallest.topk(width, dim=1, largest=False, sorted=False).values.amax(dim=1)
            limit = torch.minimum(limit, torch.nextafter(at_most, at_most.new_tensor(torch.inf)))
        row, group = (smallest < limit.unsqueeze(1)).nonzero(as_tuple=True)
        if len(row) == 0:
            return
        values = grouped[row, group]  # [hit, member]
        hit, member = (values < limit[row].unsqueeze(1)).nonzero(as_tuple=True)
        row, column, value = row[hit], group[hit] * GROUP + member, values[hit, member]
        count = torch.bincount(row, minlength=len(bound))
        crowded = count > _CROWDED * width
        if bool(crowded.any()):
            rows = crowded.nonzero()[:, 0]
            best = bound[rows].topk(min(width, bound.shape[1]), dim=1, largest=False, sorted=False)
            self._merge(rows + start, best.values, best.indices + first_column)
            kept = ~crowded[row]
            row, column, value = row[kept], column[kept], value[kept]
            count = torch.where(crowded, 0, count)
        self._merge_ragged(start, row, count, value, column + first_column)

    def _merge_ragged(self, start: int, row: Tensor, count: Tensor, value: Tensor, index: Tensor) -> None:
        """Merge hits sorted by row, `count` a row."""
        rows = count.nonzero()[:, 0]
        if len(rows) == 0:
            return
        position = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        line = torch.zeros_like(count)
        line[rows] = torch.arange(len(rows), device=row.device)
        shape = (len(rows), int(count.max()))
        bound, whose = value.new_full(shape, torch.inf), index.new_zeros(shape)
        bound[line[row], position], whose[line[row], position] = value, index
        self._merge(rows + start, bound, whose)

    def _merge(self, rows: Tensor, bound: Tensor, index: Tensor) -> None:
        bound, index = (
            torch.cat([self.bound[rows], bound], dim=1),
            torch.cat([self.index[rows], index], dim=1),
        )
        kept = bound.topk(self.bound.shape[1], dim=1, largest=False, sorted=False)
        self.bound[rows], self.index[rows] = kept.values, index.gather(1, kept.indices)
        self.worst[rows] = kept.values.amax(dim=1)


def _padded(side: Side) -> Side:
    """A multiple of `GROUP` points, those added being infinitely far from everything."""
    missing = -len(side) % GROUP
    points = torch.cat([side.points, side.points.new_zeros(missing, side.points.shape[1])])
    return Side(points, torch.cat([side.norm, side.norm.new_full((missing,), torch.inf)]))


def search_among_reference(
    search: Filter, query: Side, width: int, own: Int[Tensor, " query"] | None = None
) -> Candidates:
    """The `width` smallest bounds from each query to the reference, leaving out its `own` position if given."""
    found, reference = Candidates(len(query), width, query.norm), _padded(search.reference)
    tile_columns = min(_WIDTH, len(reference))
    tile_rows = min(len(query), max(1, pairwise.CHUNK_ELEMENTS // tile_columns))
    buffer = query.norm.new_empty(tile_rows * tile_columns)
    for rows in slices(len(query), tile_rows):
        for columns in slices(len(reference), tile_columns):
            bound = search.row_bounds(query[rows], reference[columns], buffer)
            if own is not None:
                position = own[rows] - columns.start
                inside = ((position >= 0) & (position < bound.shape[1])).nonzero()[:, 0]
                bound[inside, position[inside]] = torch.inf
            found.offer(rows.start, bound, columns.start)
    found.bound.add_(search.query_term(query))
    return found


def search_among_themselves(search: Filter, width: int) -> Candidates:
    """The `width` smallest bounds from each point to the others.

    For more points than a tile is wide, every product is computed once and used for both of its points.
    """
    size = len(search.query)
    if size <= _WIDTH:
        return search_among_reference(
            search, search.query, width, torch.arange(size, device=search.query.norm.device)
        )
    points = _padded(search.query)
    found, buffer = Candidates(len(points), width, points.norm), points.norm.new_empty(_TILE**2)
    for rows in slices(len(points), _TILE):
        for columns in slices(len(points), _TILE):
            if columns.start < rows.start:
                continue
            bound = search.lower_bounds(points[rows], points[columns], buffer)
            if columns.start == rows.start:
                bound.fill_diagonal_(torch.inf)
            else:
                found.offer(columns.start, bound.T, rows.start)
            found.offer(rows.start, bound, columns.start)
    found.bound, found.index = found.bound[:size], found.index[:size]
    return found
