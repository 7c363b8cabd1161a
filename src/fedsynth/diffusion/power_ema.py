"""Averages of weights over training: EDM2's power-function profile, several at once, and their use at sampling.

The average at update t weighs the weights of update τ by about τ^γ (EDM2, Karras et al. 2024, Sect. 3.1): its length
grows with training, so no decay has to fit the number of updates. A width σ_rel, the standard deviation of the
profile relative to t, names it: 0.05 and 0.10 are EDM2's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fedsynth.diffusion.inputs import DiffusionInputError

TensorList = tuple[Tensor, ...] | list[Tensor]

MAX_RELATIVE_WIDTH = 12**-0.5
"""σ_rel of γ = 0, the plain mean over all updates: the uniform law's deviation."""


def relative_width(gamma: float) -> float:
    """σ_rel = √((γ + 1) / ((γ + 2)² (γ + 3))): the deviation of the law with density ∝ τ^γ on [0, 1].

    Raises:
        DiffusionInputError: If γ is negative.
    """
    if not gamma >= 0:
        raise DiffusionInputError(f"gamma must be at least 0, got {gamma}.")
    return math.sqrt((gamma + 1) / (gamma + 3)) / (gamma + 2)


def power_exponent(width: float) -> float:
    """γ of a relative width, the inverse of ``relative_width``: 0.05 gives 16.97, 0.10 gives 6.94.

    It is the largest root of γ³ + 7γ² + (16 - σ_rel⁻²) γ + 12 - σ_rel⁻² = 0.

    Raises:
        DiffusionInputError: If the width is not in (0, 0.2886…], the widths of γ ≥ 0.
    """
    if not 0 < width <= MAX_RELATIVE_WIDTH:
        raise DiffusionInputError(
            f"A relative width must be in (0, {MAX_RELATIVE_WIDTH:.4f}], got {width}. EDM2: 0.05 and 0.10."
        )
    inverse = width**-2
    return max(0.0, float(np.roots([1.0, 7.0, 16.0 - inverse, 12.0 - inverse]).real.max()))


def power_decay(update: int, gamma: float) -> float:
    """β = (1 - 1/t)^(γ + 1), the share of the old average kept at update t = 1, 2, …; 0 at the first."""
    return (1 - 1 / update) ** (gamma + 1)


def power_function_average(model: nn.Module, width: float) -> AveragedModel:
    """An average w̄ ← β_t w̄ + (1 - β_t) w, moved by ``update_parameters(model)`` after each step.

    Used as ``exponential_moving_average``: the first update copies the weights, buffers are always copied.
    Updates are counted, so they must come at equal intervals.

    Args:
        model: The trained network.
        width: σ_rel.

    Raises:
        DiffusionInputError: If the width is out of range.
    """
    gamma = power_exponent(width)

    def move(averages: TensorList, weights: TensorList, num_averaged: Tensor | int) -> None:
        share = 1 - power_decay(int(num_averaged) + 1, gamma)
        torch._foreach_lerp_(averages, weights, share)

    return AveragedModel(model, multi_avg_fn=move, use_buffers=False)


class PowerAverages(nn.Module):
    """Averages of one network at several widths, and copies of them at given updates.

    As a module it moves with its owner and is part of its checkpoints.

    Args:
        model: The trained network; it is copied once a width.
        widths: σ_rel of each average, all different.

    Raises:
        DiffusionInputError: If there is no width, one is out of range, or two are equal.
    """

    def __init__(self, model: nn.Module, widths: Sequence[float] = (0.05, 0.10)) -> None:
        super().__init__()
        if not widths or len(set(widths)) != len(widths):
            raise DiffusionInputError(f"widths must be different numbers, at least one, got {list(widths)}.")
        self.widths = tuple(widths)
        self.averages = nn.ModuleList(power_function_average(model, width) for width in widths)
        self.requires_grad_(False)

    def update(self, model: nn.Module) -> None:
        """Move every average; call it once after each optimizer step."""
        for average in self.averages:
            average.update_parameters(model)  # type: ignore[operator]

    def at(self, width: float) -> nn.Module:
        """The averaged network of one width, in whatever train/eval mode it is: call ``eval`` before sampling.

        Raises:
            DiffusionInputError: If there is no average of this width.
        """
        if width not in self.widths:
            raise DiffusionInputError(
                f"There is no average of width {width}; there are {', '.join(map(str, self.widths))}."
            )
        average = self.averages[self.widths.index(width)]
        if int(average.n_averaged) == 0:  # type: ignore[arg-type]
            raise DiffusionInputError("The average holds untrained weights: update was never called.")
        return average.module  # type: ignore[return-value]

    def get_extra_state(self) -> Tensor:
        """The widths, so that a checkpoint says which averages it holds."""
        return torch.tensor(self.widths, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse a checkpoint of other widths, whose tensors would fit as well."""
        if tuple(state.tolist()) != self.widths:
            raise DiffusionInputError(
                f"The checkpoint holds averages of widths {state.tolist()}, asked for are {list(self.widths)}. "
                "Use the widths it was trained with."
            )

    def snapshot(self, width: float) -> dict[str, Tensor]:
        """A copy of one average's state, e.g. of a tenth of the training for guidance, for ``load_state_dict``."""
        return {name: value.detach().clone() for name, value in self.at(width).state_dict().items()}


@contextmanager
def averaged_weights(model: nn.Module, average: nn.Module) -> Iterator[None]:
    """Inside the block ``model`` computes with the weights and buffers of ``average``, and the other way round.

    Tensors are exchanged, not copied, and go back when the block is left, also by an exception. The parameters
    stay the same objects, so an optimizer of ``model`` does not notice; it must not step inside, nor may the
    average be updated.

    Raises:
        DiffusionInputError: If the networks differ in the names or shapes of their tensors.
    """
    # fidelity: ema-at-sampling
    pairs = _matching_tensors(model, average)
    _exchange(pairs)
    try:
        yield
    finally:
        _exchange(pairs)


def _matching_tensors(model: nn.Module, average: nn.Module) -> list[tuple[Tensor, Tensor]]:
    ours, theirs = (
        {**dict(module.named_parameters()), **dict(module.named_buffers())} for module in (model, average)
    )
    differing = sorted(ours.keys() ^ theirs.keys()) or [n for n in ours if ours[n].shape != theirs[n].shape]
    if differing:
        raise DiffusionInputError(
            f"The average is of another network: {', '.join(differing[:3])} differ. "
            "Pass the averaged network itself (.module), of the same architecture."
        )
    return [(ours[name], theirs[name]) for name in ours]


def _exchange(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for first, second in pairs:
        first.data, second.data = second.data, first.data
