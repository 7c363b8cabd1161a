"""Accounting of DP-SGD: how much noise a client's own training needs, and what it costs. Free of torch.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016: every step draws each record with
probability q, clips its gradient to norm C and adds noise of standard deviation z · C to the sum:

    g̃ = (Σ_i B_i clip_C(g_i) + z C · N(0, I)) / (q n),    B_i ~ Bernoulli(q).

| symbol | name                 | meaning                                                        |
|--------|----------------------|----------------------------------------------------------------|
| q      | sample_rate          | probability with which a step draws a record                   |
| T      | num_steps            | steps a client takes over all rounds and local epochs          |
| C      | clip_norm            | L2 bound on the gradient of one record                         |
| z      | noise_to_clip        | standard deviation of the noise over C                         |

Adjacency is REPLACE_ONE as in the rest of the package: n is public, and the sum of a step moves by at most 2C.
z is a multiple of C, not of that sensitivity (dp-accounting's convention). Under ADD_OR_REMOVE_ONE the same z
would appear to cost about half the ε; the two must not be mixed.

The price is that of dp-accounting's privacy loss distribution (a pessimistic discretization); full batches
(q = 1) have the exact price of one Gaussian release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fedsynth.privacy.gaussian import analytic_gaussian_std, gaussian_epsilon
from fedsynth.privacy.ledger import LedgerEntry
from fedsynth.privacy.parameters import (
    PrivacyParameterError,
    check_count,
    check_delta,
    check_epsilon,
    check_noise_std,
    check_positive,
)
from fedsynth.privacy.sensitivity import Adjacency

# e^100 protects nothing, and the privacy loss distribution of so little noise would not fit into memory.
LARGEST_EPSILON = 100.0
MECHANISM = "DP-SGD (Poisson-subsampled Gaussian)"
_INTERVAL = 1e-3  # of the discretized privacy loss, for ε around 1 and above
_TOLERANCE = 1e-3  # relative, of z


@dataclass(frozen=True)
class PoissonSchedule:
    """How a client draws its batches. All of it is public: n, the batch size and the number of epochs.

    Attributes:
        num_records: n, records of the client, ≥ 1.
        batch_size: Records a step draws on average; more than n means all of them in every step.
        num_epochs: Local epochs over all rounds, ≥ 1; one epoch has ⌈n / batch_size⌉ steps.

    Raises:
        PrivacyParameterError: If a number is no integer ≥ 1.
    """

    num_records: int
    batch_size: int
    num_epochs: int

    def __post_init__(self) -> None:
        for name in ("num_records", "batch_size", "num_epochs"):
            check_count(getattr(self, name), name)

    @property
    def sample_rate(self) -> float:
        """q = min(1, batch_size / n)."""
        return min(1.0, self.batch_size / self.num_records)

    @property
    def expected_batch_size(self) -> int:
        """q n: what the noisy sum is divided by, whatever the size of the batch drawn."""
        return min(self.batch_size, self.num_records)

    @property
    def steps_per_epoch(self) -> int:
        """⌈n / batch_size⌉."""
        return -(-self.num_records // self.batch_size)

    @property
    def num_steps(self) -> int:
        """T, over all epochs."""
        return self.steps_per_epoch * self.num_epochs


@dataclass(frozen=True)
class ClientNoise:
    """A client's schedule with the noise calibrated to it: z, and the ε it achieves (at most the target)."""

    schedule: PoissonSchedule
    noise_to_clip: float
    epsilon: float


def dp_sgd_epsilon(
    noise_to_clip: float, sample_rate: float, num_steps: int, *, delta: float, interval: float = _INTERVAL
) -> float:
    """ε of T steps of DP-SGD under REPLACE_ONE, rounded up.

    Args:
        noise_to_clip: z ≥ 0. Without noise ε is ∞.
        sample_rate: q in (0, 1].
        num_steps: T ≥ 1.
        delta: δ in (0, 1).
        interval: Discretization of the privacy loss; smaller is tighter and slower.

    Raises:
        PrivacyParameterError: For a value outside these ranges.
    """
    z, delta = check_noise_std(noise_to_clip, "noise_to_clip"), check_delta(delta)
    rate, steps = _check_rate(sample_rate), check_count(num_steps, "num_steps")
    if z == 0:
        return math.inf
    if rate == 1:  # T Gaussian releases of sensitivity 2 are one whose noise is √T times smaller
        return gaussian_epsilon(delta, z / math.sqrt(steps), 2.0)
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, interval)
    return float(accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps)).get_epsilon(delta))


@lru_cache(maxsize=1024)
def noise_to_clip_for(epsilon: float, delta: float, sample_rate: float, num_steps: int) -> float:
    """The noise z with which T steps of DP-SGD are (ε, δ)-DP under REPLACE_ONE.

    The smallest one up to a tenth of a percent, rounded toward privacy.

    Args:
        epsilon: ε in (0, 100], or ∞: no noise, 0.0 is returned.
        delta: δ in (0, 1).
        sample_rate: q in (0, 1].
        num_steps: T ≥ 1.

    Raises:
        PrivacyParameterError: For a value outside these ranges.
    """
    epsilon, delta = check_dp_sgd_epsilon(epsilon), check_delta(delta)
    rate, steps = _check_rate(sample_rate), check_count(num_steps, "num_steps")
    if math.isinf(epsilon):
        return 0.0
    # Full batches need the most noise: sampling only helps. Their z is known in closed form.
    full_batch = 2 * math.sqrt(steps) * analytic_gaussian_std(epsilon, delta, 1.0)
    if rate == 1:
        return full_batch

    def spends_too_much(z: float) -> bool:
        interval = _INTERVAL * min(1.0, epsilon)
        return dp_sgd_epsilon(z, rate, steps, delta=delta, interval=interval) > epsilon

    high = full_batch
    while spends_too_much(high):  # by the discretization only
        high *= 1.05
    low = high / 2
    while not spends_too_much(low):
        low, high = low / 2, low
    while high - low > _TOLERANCE * high:  # the upper end always keeps the budget
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spends_too_much(middle) else (low, middle)
    return high


def calibrate(
    schedules: Sequence[PoissonSchedule], *, epsilon: float, delta: float
) -> tuple[ClientNoise, ...]:
    """Every client's noise, known before training: its own z for its own q and T.

    Raises:
        PrivacyParameterError: For ε or δ out of range.
    """
    noises = []
    for schedule in schedules:
        rate, steps = schedule.sample_rate, schedule.num_steps
        z = noise_to_clip_for(epsilon, delta, rate, steps)
        # Never above the target: the search may have used a finer discretization than this.
        spent = math.inf if z == 0 else min(epsilon, dp_sgd_epsilon(z, rate, steps, delta=delta))
        noises.append(ClientNoise(schedule, z, spent))
    return tuple(noises)


def dp_sgd_ledger_entry(
    noises: Sequence[ClientNoise],
    *,
    stage: str,
    delta: float,
    clip_norm: float,
    not_covered: tuple[str, ...],
) -> LedgerEntry:
    """What the training of all clients costs one record.

    Clients hold disjoint records, so the largest ε of a client is that of all of them (parallel composition);
    the steps of one client are composed adaptively. With no noise the entry has ε = ∞.

    Raises:
        PrivacyParameterError: If there is no client, or δ or C are out of range.
    """
    check_count(len(noises), "the number of clients")
    radius = check_positive(clip_norm, "clip_norm")
    steps = [noise.schedule.num_steps for noise in noises]
    rates = [noise.schedule.sample_rate for noise in noises]
    if any(math.isinf(noise.epsilon) for noise in noises):
        published = ("all updates of every client in every round: clipped, without noise", *not_covered)
        return LedgerEntry.without_guarantee(stage=stage, published=published, num_releases=sum(steps))
    levels = [noise.noise_to_clip for noise in noises]
    return LedgerEntry(
        stage=stage,
        mechanism=MECHANISM,
        epsilon=max(noise.epsilon for noise in noises),
        delta=check_delta(delta),
        adjacency=Adjacency.REPLACE_ONE,
        covered=(
            "all updates of a client in all rounds, for one training pair (X-ray, beat): "
            f"q {_span(rates)}, {_span(steps)} steps, noise / clip norm {_span(levels)}"
        ),
        not_covered=not_covered,
        num_releases=sum(steps),
        sensitivity_range=(2 * radius, 2 * radius),
        noise_std_range=(min(levels) * radius, max(levels) * radius),
        composition="adaptive over the steps of a client (privacy loss distribution); parallel over clients",
    )


def check_dp_sgd_epsilon(value: object, name: str = "epsilon") -> float:
    """ε in (0, 100] or ∞.

    Raises:
        PrivacyParameterError: If it is outside.
    """
    epsilon = check_epsilon(value, name)
    if epsilon == 0 or LARGEST_EPSILON < epsilon < math.inf:
        raise PrivacyParameterError(
            f"{name} must be in (0, {LARGEST_EPSILON:g}] or .inf, got {value!r}. Typical: 2 to 8; .inf clips "
            "without noise and carries no guarantee."
        )
    return epsilon


def _check_rate(value: float) -> float:
    rate = check_positive(value, "sample_rate")
    if rate > 1:
        raise PrivacyParameterError(
            f"sample_rate must be in (0, 1], got {value!r}. It is batch_size / records, at most 1."
        )
    return rate


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"
