"""Predicate singling out: does a released image point at one training record, more often than chance would?

Cohen and Nissim (2020): after seeing a release an adversary names a predicate p. It *isolates* if exactly one of the n
training records satisfies it; its *weight* w is the probability that a new record does. A predicate that was chosen
without the release isolates with probability n w (1 - w)^(n-1), at most (1 - 1/n)^(n-1) (about 37 %, at w = 1/n).
Singling out means isolating much more often than that with predicates of tiny weight.

The predicates here are balls around released images, p(z) = [||f(z) - f(x')|| <= r] in the space of an encoder f. Their
weights are estimated on a *control*: real records of other patients of the same hospitals and classes, which neither
the generator, nor the encoder, nor the selection has seen.

What these tests do **not** show: that a release is secure against predicate singling out (PSO secure). That is a
statement about every adversary and every predicate; balls in one feature space are one family, and a release they do
not single out from may be open to another. Differential privacy implies PSO security; a passed test does not.
They can show that a release is *not*. Intervals treat released images as independent and do not cover the training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy import special, stats
from torch import Tensor

from fedsynth.attacks.isolation_baseline import isolation_baseline, isolation_ceiling, unseen_ceiling
from fedsynth.attacks.residual_risk import (
    Proportion,
    ResidualRisk,
    check_confidence,
    residual_risk,
    wilson_proportion,
)
from fedsynth.attacks.self_retrieval import check_release, check_source
from fedsynth.evaluation.balls import ball_membership
from fedsynth.evaluation.checks import (
    EvaluationError,
    PointSet,
    Vector,
    as_tensor,
    check_integer,
    check_point_pair,
    check_points,
)
from fedsynth.evaluation.neighbors import nearest_neighbors
from fedsynth.evaluation.pairwise import pair_distances


@dataclass(frozen=True)
class IsolationPoint:
    """All balls of one radius.

    Attributes:
        radius: r, in the units of the features.
        isolating: Predicates that exactly one training record satisfies.
        weight: Mean share of control records in a ball.
        weight_bound: Mean of the upper confidence bounds (one-sided, Clopper and Pearson) of the weights. Without a
            hit among n_c control records the bound is that of the rule of three, just below 3 / n_c at 95 %.
        baseline: Mean of n w (1 - w)^(n-1) at the estimated weights; 0 for predicates without a hit.
        baseline_ceiling: Mean of sup of that over all w' up to the bound of each predicate. With n_c < 3 n even balls
            without a hit have the full 37 %; look at `unseen` then.
        unseen: Predicates that exactly one training record and no control record satisfies.
        unseen_ceiling: The largest probability of that for predicates chosen without the release, whatever their weight.
        train_equal: Expected isolations among equally many training records as there are in `control_equal`.
        control_equal: Expected isolations among the control records, which no release was made from.
        residual: Of these two.
    """

    radius: float
    isolating: Proportion
    weight: float
    weight_bound: float
    baseline: float
    baseline_ceiling: float
    unseen: Proportion
    unseen_ceiling: float
    train_equal: Proportion
    control_equal: Proportion
    residual: ResidualRisk


@dataclass(frozen=True)
class IsolationCurve:
    """Isolation over a grid of radii.

    Attributes:
        points: One per radius.
        num_train: n.
        num_control: n_c.
        num_equal: Records on either side of the equal-size comparison, the smaller of the two.
    """

    points: tuple[IsolationPoint, ...]
    num_train: int
    num_control: int
    num_equal: int


def radius_grid(control: PointSet, num_radii: int = 12) -> Float[Tensor, " radius"]:
    """Radii for `isolation_curve`: from 1/16 to 2 median nearest-neighbor distances of the control, in equal ratios.

    Made from control records alone, so the choice of radii gives nothing of the training records away. Copies lie far
    below the smallest one, unrelated images near one median distance.

    Raises:
        EvaluationError: Bad points, fewer than 2, fewer than 2 radii, or half of the points repeated.
    """
    points = check_points(control, "control", min_points=2)
    num_radii = check_integer(num_radii, "num_radii", minimum=2)
    # fidelity: isolation-radii
    median = nearest_neighbors(points).distance[:, 0].quantile(0.5)
    if float(median) == 0:
        raise EvaluationError(
            "control must not consist of repeated points, got a median nearest-neighbor distance of 0. "
            "Drop duplicates, or look for an encoder that collapsed."
        )
    return median * torch.logspace(-4, 1, num_radii, base=2.0, dtype=torch.float64, device=points.device)


def isolation_curve(
    release: PointSet,
    train: PointSet,
    control: PointSet,
    radius: Vector,
    *,
    source: Vector | None = None,
    confidence: float = 0.95,
) -> IsolationCurve:
    """How often balls around released images isolate a training record, against what chance allows, by radius.

    Evidence of singling out is a lower limit of `isolating` above `baseline_ceiling`, one of `unseen` above
    `unseen_ceiling`, or one of `residual` above 0. With many radii some exceed by chance: fix one beforehand, or
    correct for their number.

    The comparison of equal sizes takes m = min(n, n_c) records of each side and averages over all such subsets
    exactly (hypergeometric), so nothing is drawn. If n_c < n, training subsets seldom hold the source of a release, and
    residual risk is diluted by up to n_c / n; with ``source`` only subsets that hold it count, i.e. what is asked is
    whether a record is singled out from m records it is one of. Use it for any release whose sources are known.

    Args:
        release: Features of the released images, one predicate each.
        train: Features of all n training records, at least 2.
        control: Features of n_c >= 2 records that were never used (see the module).
        radius: Ball radii, >= 0; one pass over all pairs each.
        source: Row in ``train`` each release was made from.
        confidence: Of the Wilson intervals (two-sided) and weight bounds (one-sided).

    Raises:
        EvaluationError: Bad points, radii, sources or confidence.
    """
    confidence = check_confidence(confidence)
    points, records = check_release(release, train)
    unused = check_point_pair(release, control, min_points=1, names=("release", "control"))[1]
    check_points(control, "control", min_points=2)
    to_source = None
    if source is not None:
        to_source = pair_distances(points, records[check_source(source, points, records)])
    curve = [
        _isolation_point(value, points, records, unused, to_source, confidence)
        for value in _check_radii(radius)
    ]
    return IsolationCurve(
        points=tuple(curve),
        num_train=len(records),
        num_control=len(unused),
        num_equal=min(len(records), len(unused)),
    )


def _isolation_point(
    radius: float,
    release: Tensor,
    train: Tensor,
    control: Tensor,
    to_source: Float[Tensor, " release"] | None,
    confidence: float,
) -> IsolationPoint:
    radii = torch.full((len(release),), radius, dtype=torch.float64, device=release.device)
    inside = ball_membership(train, release, radii).queries_per_ball.cpu().numpy()
    hits = ball_membership(control, release, radii).queries_per_ball.cpu().numpy()
    n, num_control, num_release = len(train), len(control), len(release)
    size = min(n, num_control)
    holds_source = None if to_source is None else (to_source <= radius).cpu().numpy()
    weight = hits / num_control
    bound = np.where(
        hits < num_control,
        special.betaincinv(hits + 1.0, np.maximum(num_control - hits, 1.0), confidence),
        1.0,
    )

    def proportion(success: np.ndarray) -> Proportion:
        # A sum of probabilities can exceed their number by rounding.
        return wilson_proportion(min(float(success.sum()), num_release), num_release, confidence=confidence)

    train_equal = proportion(_isolation_probability(inside, n, size, holds_source))
    control_equal = proportion(_isolation_probability(hits, num_control, size, None))
    return IsolationPoint(
        radius=radius,
        isolating=proportion(inside == 1),
        weight=float(weight.mean()),
        weight_bound=float(bound.mean()),
        baseline=float(isolation_baseline(n, weight).mean()),
        baseline_ceiling=float(isolation_ceiling(n, bound).mean()),
        unseen=proportion((inside == 1) & (hits == 0)),
        unseen_ceiling=unseen_ceiling(n, num_control),
        train_equal=train_equal,
        control_equal=control_equal,
        residual=residual_risk(train_equal, control_equal),
    )


def _isolation_probability(
    inside: np.ndarray, total: int, size: int, holds_source: np.ndarray | None
) -> np.ndarray:
    """P(exactly one of the records inside is in a random subset of ``size``), of subsets with the source if known."""
    if size == total:
        return (inside == 1).astype(np.float64)
    if holds_source is None:
        return stats.hypergeom.pmf(1, total, inside, size)
    others = inside - holds_source
    none, one = (stats.hypergeom.pmf(count, total - 1, others, size - 1) for count in (0, 1))
    return np.where(holds_source, none, one)


def _check_radii(radius: Vector) -> list[float]:
    radii = as_tensor(radius, "radius").double()
    if radii.ndim != 1 or len(radii) == 0 or not bool(((radii >= 0) & radii.isfinite()).all()):
        raise EvaluationError(
            f"radius must hold at least one finite radius >= 0, got {radii.flatten()[:5].tolist()} of shape "
            f"{tuple(radii.shape)}. Take them from radius_grid."
        )
    return radii.tolist()
