"""What the functions of this package ask of their inputs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.errors import FedSynthError


class DiffusionInputError(FedSynthError, ValueError):
    """A schedule, tensor or setting that diffusion cannot work with."""


@runtime_checkable
class Denoiser(Protocol):
    """Predicts noise: ``denoiser(x_t, timestep, label)``, one label meaning "no class"."""

    null_label: int

    def __call__(
        self, x: Float[Tensor, "b d"], timestep: Int[Tensor, "*b"], label: Int[Tensor, " b"], /
    ) -> Float[Tensor, "b d"]: ...


def null_label(denoiser: Denoiser) -> int:
    """The denoiser's own "no class" label.

    Raises:
        DiffusionInputError: If it has none, as a wrapper such as ``AveragedModel`` does.
    """
    label = getattr(denoiser, "null_label", None)
    if label is None:
        raise DiffusionInputError(
            f"{type(denoiser).__name__} has no null_label. If it wraps a denoiser, pass its .module instead."
        )
    return int(label)


def check_labels(label: Tensor, num_rows: int) -> None:
    """Refuse anything but one int64 label a row."""
    if label.dtype != torch.int64 or label.shape != (num_rows,):
        raise DiffusionInputError(
            f"label must be an int64 tensor of shape [{num_rows}], got {label.dtype} {list(label.shape)}."
        )


def check_latents(name: str, latents: Tensor) -> None:
    """Refuse anything but a floating-point matrix."""
    if latents.ndim != 2 or not latents.is_floating_point():
        raise DiffusionInputError(
            f"{name} must be a floating-point tensor of shape [rows, dim], "
            f"got {latents.dtype} {list(latents.shape)}."
        )
