"""Which of the allowed candidates is best: predicates that agree with the source's, as C_r sees them (Eq. 1)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from fedsynth.selection.inputs import SelectionInputError, require_matrix, require_probabilities

#: No candidate was chosen.
NONE = -1


def predicate_loss(source: Float[Tensor, "n k"], candidate: Float[Tensor, "n b k"]) -> Float[Tensor, "n b"]:
    """BCE(C_r(x), C_r(x')), the mean over the k classes of -(t ln p + (1 - t) ln(1 - p)).

    The target t is the real image's own prediction, not its label, so that the smallest value is the entropy of
    t, at p = t. Logarithms are cut at -100 as torch does, so that certain predictions stay finite.

    Args:
        source: C_r(x), the classifier's probabilities of the real images.
        candidate: C_r(x') of each image's candidates.

    Raises:
        SelectionInputError: If values are no probabilities or shapes do not agree.
    """
    if candidate.ndim != 3 or source.shape != (len(candidate), candidate.shape[2]):
        raise SelectionInputError(
            f"Sources must be [n, k] and candidates [n, b, k], got {list(source.shape)} and {list(candidate.shape)}."
        )
    require_probabilities("source", source)
    require_probabilities("candidate", candidate)
    target = source[:, None].expand_as(candidate)
    return functional.binary_cross_entropy(candidate, target, reduction="none").mean(2)


def best_allowed(loss: Float[Tensor, "n b"], allowed: Bool[Tensor, "n b"]) -> Int64[Tensor, " n"]:
    """The allowed candidate with the smallest loss, the first among equals; ``NONE`` where none is allowed.

    Give zeros as loss to take the first allowed candidate.

    Raises:
        SelectionInputError: On a NaN, or if shapes do not agree.
    """
    _require_losses(loss, allowed)
    masked = loss.masked_fill(~allowed, torch.inf)
    # A stable sort: argmin may return any of several equal candidates, and another one elsewhere.
    chosen = masked.sort(dim=1, stable=True).indices[:, 0]
    return torch.where(allowed.any(1), chosen, NONE)


def penalized_choice(loss: Float[Tensor, "n b"], is_flagged: Bool[Tensor, "n b"]) -> Int64[Tensor, " n"]:
    """argmin(loss + 1 where flagged), as the released code of PSO-secure sharing has it: NOT a filter.

    A flagged candidate wins if all are flagged, or if every other one has a loss more than 1 larger. Only to
    measure what that does.

    Raises:
        SelectionInputError: On a NaN, or if shapes do not agree.
    """
    _require_losses(loss, is_flagged)
    return (loss + is_flagged.to(loss.dtype)).sort(dim=1, stable=True).indices[:, 0]


def _require_losses(loss: Tensor, mask: Tensor) -> None:
    require_matrix("loss", loss)
    if mask.shape != loss.shape or mask.dtype != torch.bool:
        raise SelectionInputError(
            f"The mask must be bool of shape {list(loss.shape)}, got {mask.dtype} {list(mask.shape)}."
        )
    if bool(loss.isnan().any()):
        raise SelectionInputError(
            f"{int(loss.isnan().sum())} of {loss.numel()} ranking losses are NaN; the classifier may have diverged."
        )
