"""What every network checks before it computes: shapes and types, never values that would stall a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsynth.errors import FedSynthError


class ModelInputError(FedSynthError, ValueError):
    """A network got a tensor of the wrong shape or type, or was built with impossible numbers."""


def require_positive(name: str, *values: int) -> None:
    """Refuse sizes below one; ``name`` is the constructor argument they came from."""
    if not values or min(values) < 1:
        raise ModelInputError(f"{name} must hold integers of at least 1, got {list(values)}.")


def require_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Refuse a tensor that is not of ``shape``; ``None`` allows any size along that axis."""
    fits = tensor.ndim == len(shape) and all(
        want is None or want == got for want, got in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ModelInputError(f"{name} must have shape [{wanted}], got {list(tensor.shape)}.")


def require_floating(name: str, tensor: Tensor) -> None:
    """Refuse integer tensors, e.g. images that were never normalized."""
    if not tensor.is_floating_point():
        raise ModelInputError(
            f"{name} must be a floating-point tensor, got {tensor.dtype}; normalize it first."
        )


def embedding_dim(encoder: nn.Module) -> int:
    """Length of the vectors an encoder returns, which it must declare as ``embedding_dim``."""
    length = getattr(encoder, "embedding_dim", None)
    if not isinstance(length, int):
        raise ModelInputError(
            f"{type(encoder).__name__} must have an integer attribute embedding_dim, got {length}."
        )
    return length


def require_indices(name: str, tensor: Tensor, num_values: int) -> None:
    """Refuse tensors that are not int64 indices in [0, num_values).

    The range is checked on CPU only: on CUDA reading it would make every step wait for the device.
    """
    if tensor.dtype != torch.int64:
        raise ModelInputError(f"{name} must be an int64 tensor, got {tensor.dtype}; call .long().")
    if tensor.device.type == "cpu" and tensor.numel():
        low, high = (int(value) for value in tensor.aminmax())
        if low < 0 or high >= num_values:
            raise ModelInputError(
                f"{name} must lie in [0, {num_values - 1}], got values from {low} to {high}."
            )
