"""Image Retrieval Score: how many training records the nearest-neighbor retrievals of a sample reach.

n queries each retrieve their nearest of N training records, K of these are distinct. Of how many reachable records
that is evidence, ŝ, follows from the model of `fedsynth.evaluation.occupancy` (Trichotomy's evaluation package).

What the score does **not** say: records are not retrieved uniformly (some are neighbors of many), so ŝ is an effective
number, well below N for real data too; it depends on the features and, for few records, on n. It measures coverage,
not fidelity, and nothing of privacy: copies of the training records reach all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation.checks import PointSet, check_generator, check_point_pair
from fedsynth.evaluation.neighbors import nearest_neighbors
from fedsynth.evaluation.occupancy import Bounds, distinct_moments, reachable_bounds, reachable_records


@dataclass(frozen=True)
class ImageRetrievalScore:
    """What one sample retrieves.

    Attributes:
        num_queries: n.
        num_train: N.
        num_distinct: K.
        num_reachable: ŝ, the estimate of the number of reachable training records.
        reachable_low: Smallest s <= N under which K or more distinct records have at least the tail probability; N if
            there is none (`is_more_even_than_chance`).
        reachable_high: Largest s <= N under which K or fewer have it.
        saturation_distinct: The smallest K whose estimate is the ceiling N.
        is_more_even_than_chance: Even N equally likely records would seldom give as many distinct ones. The model does
            not hold then, e.g. since every query was made from a training record of its own.
    """

    num_queries: int
    num_train: int
    num_distinct: int
    num_reachable: int
    reachable_low: int
    reachable_high: int
    saturation_distinct: int
    is_more_even_than_chance: bool

    @property
    def alpha(self) -> float:
        """α = n / N."""
        return self.num_queries / self.num_train

    @property
    def irs_alpha(self) -> float:
        """IRS_α = K / N; grows with n."""
        return self.num_distinct / self.num_train

    @property
    def irs_inf(self) -> float:
        """IRS_∞ = ŝ / N, in (0, 1]."""
        return self.num_reachable / self.num_train

    @property
    def irs_inf_interval(self) -> tuple[float, float]:
        """Bounds of IRS_∞, each by its tail probability."""
        return self.reachable_low / self.num_train, self.reachable_high / self.num_train

    @property
    def is_saturated(self) -> bool:
        """ŝ is the ceiling N: samples there cannot be told apart, the true value may be anything from the low end on."""
        return self.num_distinct >= self.saturation_distinct


@dataclass(frozen=True)
class RelativeRetrieval:
    """IRS_∞,a: the estimate of synthetic records over that of real test records, all from the same n.

    Attributes:
        synthetic: One score per chunk of n synthetic records.
        test: One score per chunk of n test records.
    """

    synthetic: tuple[ImageRetrievalScore, ...]
    test: tuple[ImageRetrievalScore, ...]

    @property
    def irs_inf_a(self) -> float:
        """Mean ŝ of the synthetic chunks over that of the test chunks; may exceed 1."""
        return _mean_reachable(self.synthetic) / _mean_reachable(self.test)

    @property
    def ceiling(self) -> float:
        """1 / IRS_∞ of the test records: no sample, however diverse, can have a larger IRS_∞,a."""
        return self.test[0].num_train / _mean_reachable(self.test)

    @property
    def saturated_share(self) -> float:
        """Share of synthetic chunks at the ceiling; above 0 IRS_∞,a is too low and says little."""
        return sum(score.is_saturated for score in self.synthetic) / len(self.synthetic)


def _mean_reachable(scores: tuple[ImageRetrievalScore, ...]) -> float:
    return sum(score.num_reachable for score in scores) / len(scores)


def image_retrieval_score(
    query: PointSet, train: PointSet, *, tail: float = 0.05, bounds: Bounds = "exact"
) -> ImageRetrievalScore:
    """IRS of a sample: the distinct nearest training records of its points, and how many are reachable at all.

    Compare samples at equal n only (`relative_retrieval_score` sees to it).

    Args:
        query: Features of the sample (synthetic or real test records).
        train: Features of the training records, same encoder. Of equal distances the lower row is retrieved, so
            repeated training records lower the score.
        tail, bounds: See `fedsynth.evaluation.occupancy.reachable_bounds`.

    Raises:
        EvaluationError: Bad points or settings.
    """
    points, records = check_point_pair(query, train, names=("query", "train"))
    return _score(nearest_neighbors(points, records).index[:, 0], len(records), tail, bounds)


def _score(index: Int[Tensor, " n"], num_train: int, tail: float, bounds: Bounds) -> ImageRetrievalScore:
    n, k = len(index), len(index.unique())
    low, high = reachable_bounds(k, n, num_train, tail=tail, bounds=bounds)
    return ImageRetrievalScore(
        num_queries=n,
        num_train=num_train,
        num_distinct=k,
        num_reachable=reachable_records(k, n, num_train),
        reachable_low=num_train if low is None else low,
        reachable_high=high,
        saturation_distinct=min(n, math.ceil(distinct_moments(n, num_train)[0])),
        is_more_even_than_chance=low is None,
    )


def relative_retrieval_score(
    synthetic: PointSet,
    test: PointSet,
    train: PointSet,
    *,
    generator: torch.Generator,
    tail: float = 0.05,
    bounds: Bounds = "exact",
) -> RelativeRetrieval:
    """IRS_∞,a = ŝ(synthetic) / ŝ(real test), both at n = min(#synthetic, #test).

    The larger set is cut into as many chunks of n as it holds, over which ŝ is averaged; the rest of it is left out.
    Real records that are distributed as the training ones give about 1. How far real test records are from them moves
    the result as much as the synthetic ones do: give IRS_∞ of a second real set beside it.

    Args:
        synthetic, test, train: Features of one encoder.
        generator: Shuffles both sets before they are cut, so that no order of classes or sites is cut along.
        tail, bounds: See `fedsynth.evaluation.occupancy.reachable_bounds`.

    Raises:
        EvaluationError: Bad points or settings.
    """
    check_generator(generator)
    records = check_point_pair(synthetic, train, names=("synthetic", "train"))[1]
    check_point_pair(test, train, names=("test", "train"))
    n = min(len(synthetic), len(test))
    scores = []
    for points in (synthetic, test):
        scores.append(
            tuple(
                _score(chunk, len(records), tail, bounds) for chunk in _chunks(points, records, n, generator)
            )
        )
    return RelativeRetrieval(synthetic=scores[0], test=scores[1])


def _chunks(
    points: PointSet, records: Float[Tensor, "train d"], size: int, generator: torch.Generator
) -> list[Int[Tensor, " n"]]:
    """Retrieved rows of the shuffled points, in chunks of exactly `size`."""
    # fidelity: irs-chunks
    index = nearest_neighbors(points, records).index[:, 0]
    order = torch.randperm(len(index), generator=generator, device=generator.device).to(index.device)
    return [chunk for chunk in index[order].split(size) if len(chunk) == size]
