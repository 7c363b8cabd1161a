"""What every function of this package demands of its arguments. Imports no torch, so that specs may read policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsynth.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


class SelectionInputError(DataError):
    """Probabilities, losses or indices from which nothing can be selected."""


def require_matrix(name: str, values: Tensor) -> None:
    """Refuse anything but a matrix with one row a source and at least one column a candidate."""
    if values.ndim != 2 or values.shape[1] < 1:
        raise SelectionInputError(
            f"{name} must have one row a source image and a column a candidate, got {list(values.shape)}."
        )


def require_probabilities(name: str, values: Tensor) -> None:
    """Refuse NaN and values outside [0, 1]: a NaN would compare as not flagged and pass the filter."""
    if not values.is_floating_point() or not bool(((values >= 0) & (values <= 1)).all()):
        bad = int((~((values >= 0) & (values <= 1))).sum())
        raise SelectionInputError(
            f"{name} must be probabilities, but {bad} of {values.numel()} values are NaN or outside [0, 1]. The "
            "network that gave them may have diverged."
        )
