"""Re-identification of released images: the training image each is most similar to, of *all* of them.

A threshold made for single pairs is no measure here: the largest of thousands of similarities exceeds it for any image,
released or not. So the largest similarities of released images are compared with those of real images of other
patients, which were never used.

No evidence of safety: noisy or washed-out images are far from all training images without being safe, and the
similarity of one network says nothing of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks.residual_risk import Proportion, wilson_proportion
from fedsynth.evaluation.checks import (
    EvaluationError,
    PointSet,
    Vector,
    as_tensor,
    check_integer,
    check_number,
    check_point_pair,
    require_finite,
)
from fedsynth.evaluation.neighbors import nearest_neighbors
from fedsynth.evaluation.ranking import auroc

PairSimilarity = Callable[[Float[Tensor, "q d"], Float[Tensor, "r d"]], Float[Tensor, "q r"]]


@dataclass(frozen=True)
class LargestSimilarity:
    """The most similar reference image of each query, and how similar it is."""

    value: Float[Tensor, " query"]
    index: Int[Tensor, " query"]


@dataclass(frozen=True)
class SimilarityComparison:
    """Largest similarities of released images against those of held-out real images.

    Attributes:
        threshold: The largest similarity that held-out images exceed with probability `expected_share`.
        expected_share: At most the level that was asked for.
        exceeding: Released images above the threshold. Its share is `expected_share` or less if they are no closer to
            the training images than other people's images are.
        auroc: P(released > held out) + P(equal) / 2; 0.5 if they are alike, above if the released ones are closer.
        median_released, median_held_out: Medians of the two sets.
    """

    threshold: float
    expected_share: float
    exceeding: Proportion
    auroc: float
    median_released: float
    median_held_out: float


def largest_similarity(query: PointSet, reference: PointSet) -> LargestSimilarity:
    """The largest cosine similarity of each query embedding to any reference embedding, exactly.

    Args:
        query: Embeddings of released or held-out images.
        reference: Embeddings of all training images, same encoder. Of equal similarities the lower row is named.

    Raises:
        EvaluationError: Bad points, or an embedding of length 0.
    """
    points, records = check_point_pair(query, reference, names=("query", "reference"))
    found = nearest_neighbors(_unit_rows(points, "query"), _unit_rows(records, "reference"))
    return LargestSimilarity(value=1 - found.distance[:, 0].square() / 2, index=found.index[:, 0])


def _unit_rows(points: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n d"]:
    norm = torch.linalg.vector_norm(points.double(), dim=1, keepdim=True)
    if bool((norm == 0).any()):
        raise EvaluationError(
            f"{name} holds {int((norm == 0).sum())} embeddings of length 0, which have no direction. "
            "Look for an encoder that collapsed or an empty image."
        )
    return points.double() / norm


def largest_pair_similarity(
    query: PointSet, reference: PointSet, similarity: PairSimilarity, *, block: int = 256
) -> LargestSimilarity:
    """`largest_similarity` for a learned similarity, such as the head of a siamese network on embedded images.

    Args:
        query, reference: What `similarity` takes, one row per image.
        similarity: Rows of two blocks → the similarity of every pair, larger for "the same patient". Put its network
            in evaluation mode first: batch statistics of a block would enter otherwise.
        block: Largest number of rows of each side per call.

    Raises:
        EvaluationError: Bad points, a block below 1, or similarities that are not finite or of another shape.
    """
    points, records = check_point_pair(query, reference, names=("query", "reference"))
    block = check_integer(block, "block")
    value = points.new_full((len(points),), -torch.inf, dtype=torch.float64)
    index = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for first in range(0, len(points), block):
        rows = slice(first, first + block)
        for start in range(0, len(records), block):
            part = records[start : start + block]
            found = similarity(points[rows], part)
            expected = (len(points[rows]), len(part))
            if not isinstance(found, Tensor) or found.shape != expected:
                raise EvaluationError(
                    f"similarity must return a tensor of shape {expected}, one value per pair, got "
                    f"{tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__}."
                )
            require_finite(found, "similarity")
            best = found.detach().double().max(dim=1)
            closer = best.values > value[rows]
            value[rows] = torch.where(closer, best.values, value[rows])
            index[rows] = torch.where(closer, best.indices + start, index[rows])
    return LargestSimilarity(value=value, index=index)


def compare_largest_similarity(
    released: Vector, held_out: Vector, *, level: float = 0.05, confidence: float = 0.95
) -> SimilarityComparison:
    """Are released images closer to some training image than real images of other patients are?

    The threshold is the k-th largest of n held-out values, k = floor(level (n + 1)): if a released image is
    exchangeable with the held-out ones, it exceeds that with probability at most k / (n + 1), for any distribution.

    Held-out images must be of other patients, but of the same sites and classes: others are farther by themselves.
    What it does not show: see the module.

    Args:
        released: Largest similarity of each released image to all training images.
        held_out: The same of real images that were never used.
        level: Share of held-out images allowed above the threshold, in (0, 1).
        confidence: Of the Wilson interval.

    Raises:
        EvaluationError: Values that are no finite vector, too few held-out images for the level, numbers out of range.
    """
    level = check_number(level, "level", low=0.0, high=1.0, is_open=True, remedy="The usual value is 0.05.")
    values, others = _check_similarities(released, "released"), _check_similarities(held_out, "held_out")
    if values.device != others.device:
        raise EvaluationError(
            f"released and held_out must be on one device, got {values.device} and {others.device}."
        )
    # The slack keeps k where level (n + 1) is an integer but for rounding.
    rank = math.floor(level * (len(others) + 1) + 1e-9)
    if rank < 1:
        raise EvaluationError(
            f"level {level:g} needs at least {math.ceil(1 / level - 1 - 1e-9)} held-out images, got {len(others)}. "
            "Use a larger level or more of them."
        )
    threshold = float(others.sort(descending=True).values[min(rank, len(others)) - 1])
    target = torch.cat([torch.ones_like(values), torch.zeros_like(others)])
    return SimilarityComparison(
        threshold=threshold,
        expected_share=rank / (len(others) + 1),
        exceeding=wilson_proportion(int((values > threshold).sum()), len(values), confidence=confidence),
        auroc=auroc(torch.cat([values, others]), target),
        median_released=float(values.quantile(0.5)),
        median_held_out=float(others.quantile(0.5)),
    )


def _check_similarities(values: Vector, name: str) -> Float[Tensor, " n"]:
    tensor = as_tensor(values, name)
    if tensor.ndim != 1 or len(tensor) == 0:
        raise EvaluationError(
            f"{name} must hold one largest similarity per image, got shape {tuple(tensor.shape)}."
        )
    require_finite(tensor, name)
    return tensor.double()
