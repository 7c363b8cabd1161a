"""Weights to start a denoiser from, checked against its architecture."""

from __future__ import annotations

import logging
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedsynth.diffusion.edm import EDMDenoiser
from fedsynth.errors import ConfigError

log = logging.getLogger(__name__)
# What depends on the kind of condition: a network may start from one trained with another, or with none.
CONDITION_LAYER = "network.embedding.condition_layer."


def initial_state(path: str, denoiser: EDMDenoiser, ema_width: float, stage: str) -> dict[str, Tensor]:
    """All weights of ``denoiser`` with those of the file put in; only its condition layer may keep its own.

    Args:
        path: A safetensors file with the names of the denoiser's state, or the ``denoiser.safetensors`` of another
            run, of which the average of ``ema_width`` is taken.
        denoiser: Of the architecture wanted.
        ema_width: Of the average.
        stage: Name of the stage, for messages.

    Raises:
        ConfigError: If the file is no safetensors file, or of another architecture.
    """
    # fidelity: initial-weights
    key = f"stages.{stage}.init_weights"
    try:
        stored = load_file(Path(path).expanduser())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{key}={path} cannot be read as safetensors: {error}.", key=key) from error
    prefix = f"{ema_width:g}/"
    if any(name.startswith(prefix) for name in stored):
        stored = {
            name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)
        }
    own = dict(denoiser.state_dict())
    wrong = [
        name
        for name in sorted(own.keys() | stored.keys())
        if not name.startswith(CONDITION_LAYER)
        and (name not in own or name not in stored or own[name].shape != stored[name].shape)
    ]
    if wrong:
        raise ConfigError(
            f"{key}={path} is of another architecture: {len(wrong)} names or shapes differ, such as "
            f"{', '.join(wrong[:3])}. Use the image_network it was trained with, or set init_weights to null.",
            key=key,
        )
    kept = [name for name in own if name not in stored or own[name].shape != stored[name].shape]
    if kept:
        log.warning("%s has no condition layer of this size: %s starts at random.", path, ", ".join(kept))
    taken = {name: value for name, value in stored.items() if name in own and name not in kept}
    return own | taken
