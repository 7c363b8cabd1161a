"""The trained denoiser as an artifact holds it, and the conditions it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.diffusion.edm import EDMDenoiser
from fedsynth.errors import ArtifactError, DataError
from fedsynth.models.image_denoiser import ImageDenoiser
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_set import ImageSet

DENOISER_FILE, EARLIER_FILE = "denoiser.safetensors", "earlier.safetensors"
# Settings that are arguments of the network.
NETWORK = (
    "channels", "multipliers", "blocks_per_level", "bottom_blocks", "attention_levels", "head_channels", "dropout",
    "style",
)  # fmt: skip


def open_denoiser(
    artifact: Artifact,
    *,
    ema_width: float | None = None,
    earlier: bool = False,
    device: str | torch.device = "cpu",
) -> EDMDenoiser:
    """D of a stage ``diadm``, in eval mode.

    Args:
        artifact: Of the stage.
        ema_width: The average to take; 0 for the raw weights, None for the one the stage's ``ema_width`` names.
        earlier: Take the snapshot from early in the training, for autoguidance, instead of the end.
        device: Where it computes.

    Raises:
        ArtifactError: If there is no average of this width.
    """
    settings, notes = artifact.manifest["settings"], artifact.manifest["notes"]
    width = settings["ema_width"] if ema_width is None else ema_width
    stored = artifact.load(EARLIER_FILE if earlier else DENOISER_FILE)
    prefix = f"{width:g}/"
    state = {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
    if not state:
        held = sorted({name.partition("/")[0] for name in stored})
        raise ArtifactError(
            f"stages.{artifact.stage} holds no average of width {width:g}; it holds {', '.join(held)} (0 is the raw "
            "weights)."
        )
    network = ImageDenoiser(**notes["network"])
    denoiser = EDMDenoiser(network, notes["sigma_data"])
    denoiser.load_state_dict(state)
    return denoiser.to(device, memory_format=torch.channels_last).eval().requires_grad_(False)  # type: ignore[call-overload]


def conditions(
    artifact_notes: Mapping[str, Any], images: ImageSet, features: Float[Tensor, "n d"] | None
) -> Float[Tensor, "n e"] | None:
    """The condition of each image, a vector of length 1: its feature, or its class (of several labels all of them).

    An image without any label gets zeros, which is "no condition".

    Args:
        artifact_notes: With ``condition``: ``none``, ``class`` or ``feature``.
        images: The images.
        features: Raw features of the same images; read for ``feature`` only.

    Returns:
        None for an unconditional denoiser.

    Raises:
        DataError: If features are missing, of another number than images, of length zero, or not finite.
    """
    kind = artifact_notes["condition"]
    if kind == "none":
        return None
    if kind == "class":
        return torch.nn.functional.normalize(images.targets(), dim=1)
    if features is None or len(features) != len(images):
        got = "none" if features is None else len(features)
        raise DataError(f"A denoiser conditioned on features needs one an image, {len(images)}, got {got}.")
    length = features.float().norm(dim=1, keepdim=True)
    if not bool((length > 0).all() and length.isfinite().all()):
        raise DataError(
            "A feature has length zero or is not finite, so it has no direction. Check the encoder."
        )
    return features.float() / length
