"""Pairs of a held-out image and a training image of the same labels."""

from __future__ import annotations

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor


def same_label_pairs(
    query: Shaped[Tensor, "m ..."], reference: Shaped[Tensor, "n ..."], stream: torch.Generator
) -> tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"]]:
    """For every query a random reference row of exactly its labels; queries without one are left out.

    A re-identification network's rate of false alarms is calibrated on pairs of one class, and is lower between classes:
    only pairs of one class may be held against it.

    Args:
        query: Class of each image, or one row of labels each.
        reference: The same of those to pair with.
        stream: Draws the partners.

    Returns:
        Rows of the queries, ascending, and of their partners.
    """
    labels = torch.cat([query, reference])
    kind = (labels if labels.ndim == 2 else labels.unsqueeze(1)).unique(dim=0, return_inverse=True)[1]
    if len(reference) == 0:
        empty = torch.empty(0, dtype=torch.long)
        return empty, empty
    own, theirs = kind[: len(query)], kind[len(query) :]
    order = theirs.argsort(stable=True)
    count = theirs.bincount(minlength=int(kind.max()) + 1)
    first = count.cumsum(0) - count
    drawn = (torch.rand(len(query), generator=stream, dtype=torch.float64) * count[own]).long()
    rows = (count[own] > 0).nonzero()[:, 0]
    return rows, order[(first[own] + drawn)[rows]]
