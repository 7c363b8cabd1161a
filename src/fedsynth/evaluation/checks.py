"""Checks that run before any metric: every bad input is refused by name, with what to do about it."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from fedsynth.errors import FedSynthError

#: Squares of larger values overflow float64 once summed.
MAX_MAGNITUDE = 1e100

#: Dtypes of points; all are computed with in float64.
POINT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

PointSet = Float[Tensor, "n d"] | Float[np.ndarray, "n d"]
Vector = Shaped[Tensor, " n"] | Shaped[np.ndarray, " n"]


class EvaluationError(FedSynthError, ValueError):
    """A metric or attack was given points, scores or labels it cannot be computed from."""


def as_tensor(values: Tensor | np.ndarray, name: str) -> Tensor:
    """`values` as a detached dense tensor; anything but a real tensor or a numeric numpy array is refused.

    Of numpy arrays torch cannot hold as they are (read-only, other byte order, long double) a copy is taken.
    """
    if isinstance(values, Tensor):
        if values.is_complex() or values.is_quantized or values.is_meta or values.layout != torch.strided:
            raise EvaluationError(
                f"{name} must be a dense tensor of real numbers, got {values.dtype} with layout "
                f"{values.layout} on {values.device}. Convert it first."
            )
        return values.detach()
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "fiub":
            raise EvaluationError(f"{name} must be numeric, got a numpy array of dtype {values.dtype}.")
        if values.dtype.itemsize > 8:
            values = values.astype(np.float64)
        return torch.from_numpy(np.require(values, values.dtype.newbyteorder("="), ["C", "W"]))
    raise EvaluationError(f"{name} must be a torch tensor or a numpy array, got {type(values).__name__}.")


def check_integer(value: object, name: str, *, minimum: int = 1, remedy: str = "") -> int:
    """An integer of at least ``minimum``; booleans, floats and text are refused.

    Raises:
        EvaluationError: Otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise EvaluationError(f"{name} must be an integer >= {minimum}, got {value!r}. {remedy}".rstrip())
    return int(value)


def check_number(
    value: object,
    name: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    is_open: bool = False,
    remedy: str = "",
) -> float:
    """A real number in [low, high], or (low, high) when `is_open`; NaN, booleans and text are refused.

    Raises:
        EvaluationError: Otherwise.
    """
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (low < number < high if is_open else low <= number <= high):
        interval = f"({low:g}, {high:g})" if is_open else f"[{low:g}, {high:g}]"
        raise EvaluationError(f"{name} must be a number in {interval}, got {value!r}. {remedy}".rstrip())
    return number


def check_generator(generator: object) -> torch.Generator:
    """A generator of random numbers; None is refused, with which torch would draw from its global state.

    Raises:
        EvaluationError: If it is none.
    """
    if not isinstance(generator, torch.Generator):
        raise EvaluationError(
            f"generator must be a torch.Generator, got {type(generator).__name__}. "
            "Say torch.Generator().manual_seed(0)."
        )
    return generator


def require_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinite values."""
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
    if tensor.dtype not in POINT_DTYPES:
        raise EvaluationError(
            f"{name} must be floating point (16, 32 or 64 bits), got {tensor.dtype}. Convert it with .float()."
        )
    if len(tensor) < min_points:
        raise EvaluationError(
            f"{name} must hold at least {min_points} points, got {len(tensor)}. Use more records."
        )
    require_finite(tensor, name)
    if len(tensor) and float(tensor.abs().max()) > MAX_MAGNITUDE:
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


def check_class_index(label: Vector, num_classes: int, num_records: int, name: str) -> Int[Tensor, " n"]:
    """A class index in [0, num_classes) for each of `num_records` records, as int64.

    Raises:
        EvaluationError: Another shape, fractions, NaN, or an index out of range.
    """
    tensor = as_tensor(label, name)
    if tensor.shape != (num_records,):
        raise EvaluationError(
            f"{name} must hold one class index per record ({num_records}), got shape {tuple(tensor.shape)}."
        )
    values = tensor.double()
    if not bool(((values >= 0) & (values < num_classes) & (values == values.floor())).all()):
        raise EvaluationError(
            f"{name} must hold one class index per record and lie in [0, {num_classes - 1}], "
            f"got {torch.unique(values)[:5].tolist()}."
        )
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
    require_finite(values, name)
    if is_probability and not bool(((values >= 0) & (values <= 1)).all()):
        raise EvaluationError(
            f"{name} must lie in [0, 1], got values from {float(values.min()):g} to {float(values.max()):g}. "
            "Apply a sigmoid or softmax to logits first."
        )
    return values, labels
