"""Bounding the influence of one record: L2 clipping, FedDP-PALD Eq. (18)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.privacy.parameters import check_percentile, check_positive
from fedsynth.records import InvalidTensorError, check_tensor


def clip_to_radius(latents: Float[Tensor, "n dim"], clip_radius: float) -> Float[Tensor, "n dim"]:
    """Every latent inside the ball of radius C: h̄ = h · min(1, C / ‖h‖₂).

    Implements the clipping of FedDP-PALD Eq. (18). Vectors inside the ball, the zero vector included, are
    returned unchanged; the others keep their direction. The scale is rounded down, so that no returned
    norm exceeds C in floating point either and clipping twice changes nothing.

    Args:
        latents: Any floating dtype; computed and returned in float64, since the sensitivity relies on it.
        clip_radius: C in latent units, finite and > 0.

    Raises:
        PrivacyParameterError: If C is not positive and finite.
        InvalidTensorError: If the latents are not [n, dim] or not finite (NaN has no bounded influence).
    """
    radius = check_positive(clip_radius, "clip_radius")
    latents = check_tensor(latents, "latents", ndim=2).double()
    norms = torch.linalg.vector_norm(latents, dim=1, keepdim=True)  # [n, 1]
    round_down = 1 - (latents.shape[1] + 4) * torch.finfo(torch.float64).eps
    return torch.where(norms > radius, latents * (radius / norms * round_down), latents)


def clip_radius_from_norms(norms: Float[Tensor, " n"], percentile: float) -> float:
    """C as a percentile of latent norms measured on validation records.

    NOT covered by the guarantee: C is computed from records without noise and published with the release.
    Take the norms of records that are not in the release (the validation split), or pass a constant.

    Args:
        norms: L2 norms of validation latents, in latent units.
        percentile: In (0, 100]; linear interpolation between order statistics.

    Raises:
        PrivacyParameterError: If the percentile is out of range, or C would be 0.
        InvalidTensorError: If there are no norms, or they are negative or not finite.
    """
    percentile = check_percentile(percentile)
    norms = check_tensor(norms, "norms", ndim=1)
    if norms.numel() == 0 or bool((norms < 0).any()):
        raise InvalidTensorError(
            f"norms must hold at least one value and none below 0, got {norms.numel()} values. "
            "Pass the L2 norms of the validation latents."
        )
    radius = float(np.percentile(norms.double().cpu().numpy(), percentile))
    return check_positive(radius, f"clip_radius (the {percentile:g}th percentile of validation norms)")
