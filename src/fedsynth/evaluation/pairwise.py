"""Bounds on all pairwise distances from one matrix product, and the exact distance of a few pairs.

Notation: a, b points in R^d, centered and scaled to norms <= 1; S = ||a||² + ||b||²; eps the machine epsilon
of the search dtype, twice its unit roundoff u.

The product form ||a||² + ||b||² - 2 a·b is fast but cancels. Its error is at most (d + 8) u S to first order:
(d u) S for the dot product in any order of summation, 2 u S for rounding both points to the search dtype, and
6 u S for rounding and adding norms. The bound used, c S with c = (2 d + 16) eps, is four times that. So the
product form only *filters*, through ``lower = (1 - c) S - 2 a·b`` and ``upper = lower + 2 c S``; every
distance that is returned or compared is recomputed from differences of the original values in float64
(`pair_distances`). Identical rows are therefore at distance exactly 0, and distances depend neither on the
chunk size nor on the search dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Elements of one block of pairs (4 or 8 MB, about a cache): the only quadratic storage.
CHUNK_ELEMENTS = 1 << 20
#: Rows prepared at a time.
_BUILD_ROWS = 1024


@dataclass(frozen=True)
class Side:
    """One point set of a `Filter`: points in the search dtype, their squared norms times 1 - c."""

    points: Float[Tensor, "n d"]
    norm: Float[Tensor, " n"]

    def __getitem__(self, rows: slice | Tensor) -> Side:
        return Side(self.points[rows], self.norm[rows])

    def __len__(self) -> int:
        return len(self.norm)


@dataclass(frozen=True)
class Filter:
    """Two centered, scaled point sets and the error bound of their products; `scale` undoes the scaling."""

    query: Side
    reference: Side
    scale: float
    error: float

    @classmethod
    def build(cls, query: Tensor, reference: Tensor, dtype: torch.dtype) -> Filter:
        """Center at the reference mean; `query is reference` shares one copy."""
        center = reference.double().mean(dim=0)
        error = (2 * query.shape[1] + 16) * torch.finfo(dtype).eps
        sets = (query,) if query is reference else (query, reference)
        scale = max(_largest_norm(points, center) for points in sets) or 1.0
        sides = [_side(points, center, scale, error, dtype) for points in sets]
        return cls(query=sides[0], reference=sides[-1], scale=scale, error=error)

    @property
    def underflow(self) -> float:
        """Covers products that underflow (flushed to zero or not), in units of scale²."""
        dim, dtype = self.query.points.shape[1], self.query.points.dtype
        return (8 * dim + 8) * torch.finfo(dtype).tiny

    def row_bounds(
        self, query: Side, reference: Side, buffer: Float[Tensor, " element"] | None = None
    ) -> Float[Tensor, "query reference"]:
        """Lower bounds on squared distances but for `query_term`, in units of scale².

        Written to the front of `buffer` if given: fresh memory for every block would cost as much as the
        product.
        """
        shape = (len(query), len(reference))
        bound = None if buffer is None else buffer[: shape[0] * shape[1]].view(shape)
        return torch.addmm(reference.norm, query.points, reference.points.T, alpha=-2.0, out=bound)

    def query_term(self, query: Side) -> Float[Tensor, "query 1"]:
        """What `row_bounds` leave out, the same for all of a row."""
        return (query.norm - self.underflow).unsqueeze(1)

    def lower_bounds(
        self, query: Side, reference: Side, buffer: Float[Tensor, " element"] | None = None
    ) -> Float[Tensor, "query reference"]:
        """Lower bounds on squared distances, in units of scale²."""
        return self.row_bounds(query, reference, buffer).add_(self.query_term(query))


def _largest_norm(points: Tensor, center: Tensor) -> float:
    parts = (points[rows].double() - center for rows in slices(len(points), _BUILD_ROWS))
    return max(float(torch.linalg.vector_norm(part, dim=1).max()) for part in parts)


def _side(points: Tensor, center: Tensor, scale: float, error: float, dtype: torch.dtype) -> Side:
    """Centered and scaled in float64, a few rows at a time, which stay in the cache."""
    side = Side(points.new_empty(points.shape, dtype=dtype), points.new_empty(len(points), dtype=dtype))
    for rows in slices(len(points), _BUILD_ROWS):
        part = (points[rows].double() - center).div_(scale)
        side.points[rows] = part
        side.norm[rows] = torch.linalg.vecdot(part, part).mul_(1 - error)
    return side


def pair_distances(
    first: Float[Tensor, "*pair d"], second: Float[Tensor, "*pair d"]
) -> Float[Tensor, "*pair"]:
    """||a - b|| of matching rows from differences, always by the same float64 summation order."""
    difference = (first.double() - second.double()).reshape(-1, first.shape[-1])
    return difference.square_().sum(dim=1).sqrt_().reshape(first.shape[:-1])


def search_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """float32 first, then float64 for what it leaves open, on a CPU whose products are true float32.

    On CUDA, and under `torch.set_float32_matmul_precision("high")`, products may be TF32 or bfloat16, to
    which the error bound does not apply; there float64 alone is used.
    """
    is_true_single = device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    return (torch.float32, torch.float64) if is_true_single else (torch.float64,)


def slices(size: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most `step` (at least one) positions."""
    step = max(1, step)
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def chunks(rows: Int[Tensor, " row"], width: int) -> Iterator[Int[Tensor, " chunk"]]:
    """Parts of `rows` of at most `CHUNK_ELEMENTS` elements, each row being `width` of them."""
    return iter(rows.split(max(1, CHUNK_ELEMENTS // max(1, width))))
