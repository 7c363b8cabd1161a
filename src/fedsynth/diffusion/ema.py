"""Exponential moving average of the denoiser's weights, by torch's own ``AveragedModel``."""

from __future__ import annotations

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fedsynth.diffusion.inputs import DiffusionInputError


def exponential_moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """An average w̄ ← decay · w̄ + (1 - decay) · w, moved by ``update_parameters(model)`` after each step.

    The first update copies the weights. Buffers are not averaged but copied at each update: averaged integer
    counters or BatchNorm statistics would belong to no network. Sample with ``.module``, which is the
    averaged network itself. The paper does not mention averaging.

    Raises:
        DiffusionInputError: If the decay is outside [0, 1).
    """
    # fidelity: diffusion-training
    if not 0 <= decay < 1:
        raise DiffusionInputError(f"decay must be in [0, 1), got {decay}. Typical: 0.999.")
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=False)
