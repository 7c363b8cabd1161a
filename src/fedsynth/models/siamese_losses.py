"""Losses of the identity network: the paper's cross-entropy on pairs, and a contrastive one that learns faster.

Both see a batch of pairs of one person each. Which images of the batch may serve as "another person" is a matrix:
never one of the same patient or one with the same pixels; with matching only one of the same label, because images
of different classes are told apart by the disease, not by the person.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError


def allowed_negatives(
    patient: tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]],
    content: tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]],
    label: tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]] | None = None,
) -> Bool[Tensor, "n m"]:
    """Whether image j may be a negative of image i.

    Args:
        patient: Numbers of the persons of the n and the m images.
        content: Equal for images with the same pixels.
        label: Equal for images that match; None to match none.
    """
    allowed = (patient[0][:, None] != patient[1]) & (content[0][:, None] != content[1])
    return allowed if label is None else allowed & (label[0][:, None] == label[1])


def siamese_bce(same: Float[Tensor, " n"], different: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    """Binary cross-entropy of pair logits (nats), mean over all pairs.

    Args:
        same: Logits of pairs of one person.
        different: Logits of pairs of two; may be empty.
    """
    terms = [nn.functional.softplus(-same), nn.functional.softplus(different)]
    return torch.cat(terms).mean()


def infonce(
    first: Float[Tensor, "n e"],
    second: Float[Tensor, "n e"],
    allowed: Bool[Tensor, "n n"],
    temperature: float,
) -> Float[Tensor, ""]:
    """InfoNCE (van den Oord et al. 2018) of cosine similarities, both directions averaged, in nats.

    Row i is -ln [exp(s_ii/τ) / (exp(s_ii/τ) + Σ_{j allowed} exp(s_ij/τ))]. A row without an allowed negative is 0 and
    counts in the mean, so its pair teaches nothing.

    Args:
        first, second: Embeddings of the two images of each pair.
        allowed: Whether ``second[j]`` may be a negative of ``first[i]``; the diagonal is ignored.
        temperature: τ > 0.

    Raises:
        ModelInputError: If τ is not positive, or shapes differ.
    """
    if not temperature > 0:
        raise ModelInputError(f"temperature must be > 0, got {temperature}.")
    if first.shape != second.shape or allowed.shape != (len(first), len(first)):
        raise ModelInputError(
            f"first, second and allowed must be [n, e], [n, e] and [n, n], got {list(first.shape)}, "
            f"{list(second.shape)} and {list(allowed.shape)}."
        )
    similarity = nn.functional.normalize(first, dim=1) @ nn.functional.normalize(second, dim=1).T
    kept = allowed | torch.eye(len(first), dtype=torch.bool, device=first.device)
    logits = (similarity / temperature).masked_fill(~kept, -torch.inf)
    positive = similarity.diagonal() / temperature
    rows, columns = logits.logsumexp(1) - positive, logits.logsumexp(0) - positive
    return (rows.mean() + columns.mean()) / 2


def hardest_negatives(score: Float[Tensor, "n m"], allowed: Bool[Tensor, "n m"]) -> Float[Tensor, " k"]:
    """Of each row the largest score among its allowed ones; rows without any are left out."""
    rows = allowed.any(1)
    return score.masked_fill(~allowed, -torch.inf)[rows].amax(1)
