"""The identity filter of PSO-secure sharing as a hard mask: a flagged candidate can never be chosen.

A candidate x' of a training image x is flagged if the probability P(x, x') that both show one person lies strictly
above a threshold. Scope ``train`` flags it also if it is too close to any other training image, which the paper does not
look at. The paper compares with 0.5; its released code adds 1 to the ranking loss instead of masking, so that a
flagged candidate can still win (``ranking.penalized_choice`` emulates that).

What this does not give: any guarantee. The mask is as good as one learned network; that this network cannot
link x' to x is neither necessary nor sufficient for x' to say nothing about x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedsynth.selection.inputs import SelectionInputError, require_matrix, require_probabilities

#: P(same person) of pairs of embeddings, row by row; symmetric.
PairProbability = Callable[[Float[Tensor, "n e"], Float[Tensor, "n e"]], Float[Tensor, " n"]]


def flagged(probability: Float[Tensor, "n b"], threshold: float | Float[Tensor, " n"]) -> Bool[Tensor, "n b"]:
    """P > threshold.

    Args:
        probability: That a candidate shows the person of its source (or of any training image).
        threshold: One for all, or one a source. At 1 nothing would be flagged, so that is refused.

    Raises:
        SelectionInputError: If a probability is NaN or outside [0, 1], a threshold is NaN or at least 1, or shapes
            do not agree.
    """
    require_matrix("probability", probability)
    require_probabilities("probability", probability)
    limits = torch.as_tensor(threshold, dtype=torch.float64).cpu()
    if limits.ndim and limits.shape != probability.shape[:1]:
        raise SelectionInputError(
            f"There must be one threshold, or one for each of {len(probability)} sources, got {list(limits.shape)}."
        )
    if not bool((limits < 1).all()):
        raise SelectionInputError(
            f"A threshold of the identity filter must be below 1, got {float(limits.max())}: nothing would be flagged. "
            "Typical: 0.5, or a false-positive rate of 0.1. Choose a smaller value, or say that there is no filter."
        )
    # In float64, where the threshold is exact: rounded to float32 it may let a candidate across.
    return probability.double().cpu() > (limits[:, None] if limits.ndim else limits)


def source_probability(
    probability: PairProbability, source: Float[Tensor, "n e"], candidate: Float[Tensor, "n b e"]
) -> Float[Tensor, "n b"]:
    """P(x, x') of each candidate and its own source.

    Raises:
        SelectionInputError: If shapes do not agree.
    """
    if candidate.ndim != 3 or source.shape != (len(candidate), candidate.shape[2]):
        raise SelectionInputError(
            f"Sources must be [n, e] and candidates [n, b, e], got {list(source.shape)} and {list(candidate.shape)}."
        )
    rows, number = candidate.shape[:2]
    paired = source[:, None].expand_as(candidate).flatten(0, 1)
    return probability(paired, candidate.flatten(0, 1)).reshape(rows, number)


def largest_probability(
    probability: PairProbability,
    query: Float[Tensor, "n e"],
    train: Float[Tensor, "m e"],
    *,
    pairs_at_once: int = 1_000_000,
) -> Float[Tensor, " n"]:
    """The largest P(x, x') of each query over all training images x.

    A threshold for pairs says nothing about it: the largest of thousands of draws reaches it for every image,
    also for those of other people. Compare with the same of held-out real images (``exceedance_threshold``).
    Costs n · m evaluations of the probability.

    Args:
        probability: Of pairs of embeddings.
        query: Embeddings of candidates, or of held-out real images.
        train: Embeddings of all training images.
        pairs_at_once: Bounds the memory.

    Raises:
        SelectionInputError: If there is no training image, or embeddings differ in length.
    """
    if not len(train) or query.shape[1:] != train.shape[1:]:
        raise SelectionInputError(
            f"Queries and training images need embeddings of one length, got {list(query.shape)} and "
            f"{list(train.shape)}."
        )
    largest = torch.zeros(len(query), dtype=query.dtype, device=query.device)
    step = max(1, min(len(train), pairs_at_once))
    rows = max(1, pairs_at_once // step)
    for low in range(0, len(query), rows):
        block = query[low : low + rows]
        for start in range(0, len(train), step):
            other = train[start : start + step]
            first = block.repeat_interleave(len(other), 0)
            values = probability(first, other.repeat(len(block), 1)).reshape(len(block), len(other))
            largest[low : low + rows] = torch.maximum(largest[low : low + rows], values.amax(1))
    return largest


def exceedance_threshold(held_out: Float[Tensor, " n"], share: float) -> float:
    """The smallest value that at most ``share`` of the held-out real images exceed.

    Args:
        held_out: Largest probabilities of real images of people without training images.
        share: Of them that may be flagged, in [0, 1).

    Returns:
        The smallest of the values t with mean(held_out > t) ≤ share.

    Raises:
        SelectionInputError: If there are no values, they are no probabilities, or ``share`` is out of range; or if
            more than that share have the probability 1, so that no threshold can tell them apart.
    """
    if held_out.ndim != 1 or not len(held_out) or not 0 <= share < 1:
        raise SelectionInputError(
            f"A threshold needs held-out values and a share in [0, 1), got {list(held_out.shape)} and {share}."
        )
    require_probabilities("held_out", held_out)
    ordered = held_out.double().sort(descending=True).values
    # A share is a fraction of few images: 1e-9 keeps 0.1 from missing 1/10.
    threshold = float(ordered[math.floor(share * len(ordered) + 1e-9)])
    if threshold >= 1:
        raise SelectionInputError(
            f"{int((ordered == 1).sum())} of {len(ordered)} held-out images have probability 1 of showing a person of "
            f"the training set: no threshold flags at most {share:.0%} of them. Train the identity network longer or "
            "with more pairs of other people."
        )
    return threshold


def row_thresholds(by_class: Sequence[float], targets: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """The threshold of each source: the strictest of those of its classes; without any label, of all.

    Args:
        by_class: One threshold a class.
        targets: 0 or 1 for each source and class.

    Raises:
        SelectionInputError: If there are not as many thresholds as classes.
    """
    if targets.ndim != 2 or targets.shape[1] != len(by_class):
        raise SelectionInputError(
            f"There must be one threshold a class, got {len(by_class)} for targets {list(targets.shape)}."
        )
    limits = torch.tensor(list(by_class), dtype=torch.float64)
    has_label = targets.bool() | ~targets.bool().any(1, keepdim=True)
    return torch.where(has_label, limits, torch.inf).amin(1)
