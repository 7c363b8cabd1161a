"""Checks that run before any metric: every bad input is refused by name, with what to do about it."""

from __future__ import annotations

from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from fedsynth.errors import FedSynthError

#: Squares of larger values overflow float64 once summed.
MAX_MAGNITUDE = 1e100

PointSet = Float[Tensor, "n d"] | Float[np.ndarray, "n d"]
Vector = Shaped[Tensor, " n"] | Shaped[np.ndarray, " n"]


class EvaluationError(FedSynthError, ValueError):
    """A metric or attack was given points, scores or labels it cannot be computed from."""


def as_tensor(values: Tensor | np.ndarray, name: str) -> Tensor:
    """`values` as a detached tensor; anything but a tensor or a numeric numpy array is refused."""
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "fiub":
            raise EvaluationError(f"{name} must be numeric, got a numpy array of dtype {values.dtype}.")
        return torch.from_numpy(np.ascontiguousarray(values))
    raise EvaluationError(f"{name} must be a torch tensor or a numpy array, got {type(values).__name__}.")


def check_integer(value: object, name: str, *, minimum: int = 1, remedy: str = "") -> int:
    """An integer of at least ``minimum``; booleans, floats and text are refused.

    Raises:
        EvaluationError: Otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise EvaluationError(f"{name} must be an integer >= {minimum}, got {value!r}. {remedy}".rstrip())
    return int(value)


def _require_finite(values: Tensor, name: str) -> None:
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        raise EvaluationError(
            f"{name} holds {int((~finite).sum())} NaN or infinite values of {values.numel()}. "
            "Look for a diverged model or a division by zero where it was made."
        )


def check_points(points: PointSet, name: str, *, min_points: int = 1) -> Float[Tensor, "n d"]:
    """One validated point set, dtype kept.

    Args:
        points: Rows are points. Tensor or numpy array of a floating dtype.
        name: How the message calls it.
        min_points: The fewest rows the caller can work with.

    Raises:
        EvaluationError: Not 2-D, not floating, not finite, no features, or too few points.
    """
    tensor = as_tensor(points, name)
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise EvaluationError(
            f"{name} must have shape [points, features], got {tuple(tensor.shape)}. "
            "Flatten images or signals first."
        )
    if not tensor.is_floating_point():
        raise EvaluationError(f"{name} must be floating point, got {tensor.dtype}. Convert it with .float().")
    if len(tensor) < min_points:
        raise EvaluationError(
            f"{name} must hold at least {min_points} points, got {len(tensor)}. Use more records."
        )
    _require_finite(tensor, name)
    if float(tensor.abs().max()) > MAX_MAGNITUDE:
        raise EvaluationError(
            f"{name} holds values above {MAX_MAGNITUDE:g}, whose squares overflow. Rescale it."
        )
    return tensor


def check_same_space(first: Tensor, second: Tensor, names: tuple[str, str]) -> None:
    """Refuse two point sets of different dimension or on different devices."""
    if first.shape[1] != second.shape[1]:
        raise EvaluationError(
            f"{names[0]} and {names[1]} must have the same number of features, "
            f"got {first.shape[1]} and {second.shape[1]}. Take both from the same layer."
        )
    if first.device != second.device:
        raise EvaluationError(
            f"{names[0]} and {names[1]} must be on one device, got {first.device} and {second.device}. "
            "Move both with .to(device)."
        )


def check_point_pair(
    real: PointSet,
    synthetic: PointSet,
    *,
    min_points: int = 1,
    names: tuple[str, str] = ("real", "synthetic"),
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "m d"]]:
    """Two validated point sets of one space; see `check_points` and `check_same_space`."""
    first = check_points(real, names[0], min_points=min_points)
    second = check_points(synthetic, names[1], min_points=min_points)
    check_same_space(first, second, names)
    return first, second


def check_binary_target(target: Vector, name: str = "target") -> Int[Tensor, " n"]:
    """A validated 0/1 label vector as int64."""
    tensor = as_tensor(target, name)
    if tensor.ndim != 1 or len(tensor) == 0:
        raise EvaluationError(
            f"{name} must have shape [records] with at least one record, got {tuple(tensor.shape)}."
        )
    if not bool(((tensor == 0) | (tensor == 1)).all()):
        found = torch.unique(tensor)[:5].tolist()
        raise EvaluationError(f"{name} must hold only 0 and 1 (1 = positive), got {found}.")
    return tensor.long()


def check_scores(
    score: Vector, target: Vector, *, is_probability: bool, name: str = "score"
) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    """Validated scores (float64) and their 0/1 targets.

    Args:
        score: Larger means more positive.
        target: 0 or 1 for each score.
        is_probability: Also require 0 <= score <= 1.
        name: How the message calls `score`.

    Raises:
        EvaluationError: Shapes differ, values are not finite, not 0/1, or not in [0, 1].
    """
    labels = check_binary_target(target)
    values = as_tensor(score, name)
    if values.shape != labels.shape:
        raise EvaluationError(
            f"{name} and target must have the same shape [records], got {tuple(values.shape)} and "
            f"{tuple(labels.shape)}. For two-class outputs pass the positive-class column."
        )
    if values.device != labels.device:
        raise EvaluationError(
            f"{name} and target must be on one device, got {values.device} and {labels.device}."
        )
    values = values.double()
    _require_finite(values, name)
    if is_probability and not bool(((values >= 0) & (values <= 1)).all()):
        raise EvaluationError(
            f"{name} must lie in [0, 1], got values from {float(values.min()):g} to {float(values.max()):g}. "
            "Apply a sigmoid or softmax to logits first."
        )
    return values, labels
