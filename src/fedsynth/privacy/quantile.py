"""A quantile of record norms, paid for: noisy binary search on a public grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.errors import PrivacyError
from fedsynth.privacy.budget import GaussianBudget
from fedsynth.privacy.parameters import PrivacyParameterError, check_count, check_positive
from fedsynth.records import InvalidTensorError, check_indices, check_tensor

#: Noise standard deviations that must fit between the quantile asked for and "all records".
_NEEDED = 2.0


@dataclass(frozen=True)
class RadiusGrid:
    """The public candidates of a radius: 2^num_steps ratios of equal size from ``low`` to ``high``.

    Attributes:
        low: Smallest radius that can come out is one ratio above this; in latent units, > 0.
        high: Largest radius that can come out, > low.
        num_steps: Steps of the search, ≥ 1; each costs one noisy count.

    Raises:
        PrivacyParameterError: If a bound is violated.
    """

    low: float
    high: float
    num_steps: int

    def __post_init__(self) -> None:
        check_positive(self.low, "low")
        check_positive(self.high, "high")
        check_count(self.num_steps, "num_steps")
        if self.low >= self.high or self.num_steps > 30:
            raise PrivacyParameterError(
                f"A grid needs low < high and at most 30 steps, got low={self.low}, high={self.high}, "
                f"num_steps={self.num_steps}. Typical: 0.01, 1000, 7."
            )

    def radius(self, index: int) -> float:
        """The candidate with this index, from 0 to 2^num_steps."""
        return self.low * (self.high / self.low) ** (index / 2**self.num_steps)


class PrivateRadius(NamedTuple):
    """A radius and how sure it is.

    Attributes:
        radius: In latent units.
        count_std: Standard deviation of the noise of each pooled count, in records.
    """

    radius: float
    count_std: float


def require_payable_quantile(
    budget: GaussianBudget, part: str, *, num_records: int, quantile: float, where: str = ""
) -> float:
    """The noise of one pooled count; refused if it hides the difference between the quantile and all records.

    Uses public quantities only (sizes, budget), so that it can be asked before any record is read.

    Args:
        budget: Who pays.
        part: From which share.
        num_records: n over all clients.
        quantile: q in (0, 1).
        where: Config path of the release, for the message, e.g. ``"stages.release"``.

    Raises:
        PrivacyError: If two standard deviations exceed (1 - q) n; the message says what to raise.
        PrivacyParameterError: If q is not in (0, 1).
    """
    if not 0 < check_positive(quantile, "quantile") < 1:
        raise PrivacyParameterError(f"quantile must be in (0, 1), got {quantile!r}. Typical: 0.9.")
    std = budget.noise_std(part, 1.0) * math.sqrt(budget.num_clients)
    allowed = (1 - quantile) * num_records
    if _NEEDED * std > allowed:
        place = f"{where}: " if where else ""
        raise PrivacyError(
            f"{place}the private {quantile:g} quantile of latent norms cannot be paid for: each noisy count has "
            f"standard deviation {std:.4g} over {budget.num_clients} clients, but only {allowed:.4g} of "
            f"{num_records} records lie above it (epsilon={budget.epsilon:g}, part {part!r}). Raise epsilon or the "
            "share of the radius, lower the quantile, or use fewer clients."
        )
    return std


def private_radius(
    norms: Float[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    budget: GaussianBudget,
    part: str,
    *,
    quantile: float,
    grid: RadiusGrid,
) -> PrivateRadius:
    """About the q-quantile of norms over all clients: the smallest candidate that seems to hold q n records.

    Binary search: in each of ``grid.num_steps`` steps every client sends its number of norms ≤ the middle
    candidate, with noise. A count moves by at most 1 when one record is replaced (sensitivity 1); n is public.

    Degenerate: norms above the grid end at ``grid.high``, norms below it at one ratio above ``grid.low``.

    Args:
        norms: In latent units, ≥ 0.
        clients: Client of each record, in [0, K).
        budget: Pays ``grid.num_steps`` releases of ``part``.
        part: Name of the share.
        quantile: q in (0, 1).
        grid: Public candidates.

    Raises:
        PrivacyError: If the counts would be too noisy (:func:`require_payable_quantile`).
        InvalidTensorError: For bad norms or clients.
        BudgetError: If the part has not enough releases left.
    """
    norms = check_tensor(norms, "norms", ndim=1).double()
    check_indices(num_records=len(norms), clients=clients)
    if norms.numel() == 0 or bool((norms < 0).any()):
        raise InvalidTensorError(f"norms must hold at least one value and none below 0, got {norms.numel()}.")
    std = require_payable_quantile(budget, part, num_records=len(norms), quantile=quantile)
    low, high = 0, 2**grid.num_steps
    for _ in range(grid.num_steps):
        middle = (low + high) // 2
        inside = (norms <= grid.radius(middle)).double()
        counts = torch.zeros(budget.num_clients, dtype=torch.float64).index_add(0, clients, inside)
        if float(budget.release(part, counts, 1.0).values.sum()) >= quantile * len(norms):
            high = middle
        else:
            low = middle
    return PrivateRadius(grid.radius(high), std)
