"""Samples of the released mixture, standardized; never a client's latents."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.diffusion.standardize import LatentScaler
from fedsynth.stages.labelled_latents import LabelledLatentsData


class MixtureSamplesData(LabelledLatentsData):
    """Mixture samples, standardized by their own moments (``scaler`` undoes it, Eq. 30).

    Args:
        latent: Samples of the mixture.
        label: Their classes.
        whiten: Standardize along the principal axes instead of the latent dimensions.
        **options: As for ``LabelledLatentsData``.
    """

    def __init__(
        self,
        latent: Float[Tensor, "n d"],
        label: Int64[Tensor, " n"],
        *,
        whiten: bool = False,
        **options: Any,
    ) -> None:
        self.scaler = LatentScaler.fit_whitening(latent) if whiten else LatentScaler.fit(latent)
        super().__init__(self.scaler.standardize(latent), label, **options)
