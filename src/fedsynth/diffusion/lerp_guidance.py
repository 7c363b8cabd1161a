"""Guidance by a second denoiser, D = D_g + w (D_main - D_g), with the guides of PSO-secure sharing.

| kind | guide D_g | condition of the guide | paper |
|---|---|---|---|
| none | – | – | |
| unconditional | an unconditional network, or the main one without its condition | none | Ho & Salimans 2022 |
| earlier | the main network at an earlier step (autoguidance) | the main one's | Karras et al. 2024b |
| both | an unconditional network at an earlier step | none | released code of PSO-secure sharing |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.diffusion.edm import ConditionalDenoiser, Denoise
from fedsynth.diffusion.inputs import DiffusionInputError

GuidanceKind = Literal["none", "unconditional", "earlier", "both"]


@dataclass(frozen=True)
class GuidanceSettings:
    """How far to push away from which guide, and at which noise levels.

    Attributes:
        kind: The guide, see the table above.
        weight: w. 1 is unguided, above 1 exaggerates what tells the main denoiser from the guide, below 1 pulls
            towards the guide; 0 is the guide alone. Counted as EDM2 does: Ho & Salimans's w is one less.
        interval: Noise levels (low, high] with guidance, all others are unguided (Kynkäänniemi et al. 2024);
            None for all.

    Raises:
        DiffusionInputError: On an unknown kind, a weight that is negative or not finite or that "none" cannot
            have, or an empty interval.
    """

    kind: GuidanceKind = "none"
    weight: float = 1.0
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(GuidanceKind):
            raise DiffusionInputError(
                f"kind must be one of {', '.join(get_args(GuidanceKind))}, got {self.kind!r}."
            )
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise DiffusionInputError(
                f"weight must be finite and at least 0, got {self.weight}. 1 is unguided; typical: 1.2."
            )
        if self.kind == "none" and self.weight != 1:
            raise DiffusionInputError(
                f"weight is {self.weight} but kind is none; choose a kind of guidance or weight 1."
            )
        if self.interval is not None and not 0 <= self.interval[0] < self.interval[1]:
            raise DiffusionInputError(f"interval needs 0 ≤ low < high, got {list(self.interval)}.")

    @property
    def needs_guide(self) -> bool:
        """Whether a second network must be there at all."""
        return self.kind != "none" and self.weight != 1

    @property
    def guide_sees_condition(self) -> bool:
        """Whether the guide gets the main denoiser's condition."""
        return self.kind == "earlier"

    def applies(self, sigma: float) -> bool:
        """Whether guidance changes anything at this noise level."""
        inside = self.interval is None or self.interval[0] < sigma <= self.interval[1]
        return self.needs_guide and inside


def guide(
    guiding: Float[Tensor, "*shape"], main: Float[Tensor, "*shape"], weight: float
) -> Float[Tensor, "*shape"]:
    """D = D_g + w (D_main - D_g). Equal arguments come back unchanged, whatever the weight."""
    return torch.lerp(guiding, main, weight)


def guided_denoiser(
    main: ConditionalDenoiser,
    guiding: ConditionalDenoiser | None,
    condition: Float[Tensor, "b e"] | None,
    settings: GuidanceSettings,
) -> Denoise:
    """The denoiser that samplers integrate: main and guide combined, conditions bound.

    Only what is needed is evaluated: at w = 1, and outside the interval, the main denoiser alone, bit for bit
    the unguided result; at w = 0 the guide alone. Two calls are made rather than one of a doubled batch, which
    is slower on CPU.

    Args:
        main: D_main.
        guiding: D_g, which the caller chose according to ``settings.kind``. For "unconditional" it may be
            ``main`` itself if that was trained with dropped conditions. Unused, and may be None, if the
            settings need no guide.
        condition: One vector a row; None for an unconditional main denoiser.
        settings: Kind, weight and interval.

    Raises:
        DiffusionInputError: If the guide is missing, or could not differ from the main denoiser; and, when
            called, on a noise level that is not one number for the batch.
    """
    if settings.needs_guide and guiding is None:
        raise DiffusionInputError(
            f"Guidance of kind {settings.kind} with weight {settings.weight} needs a second denoiser, got None."
        )
    if settings.needs_guide and guiding is main and (settings.guide_sees_condition or condition is None):
        raise DiffusionInputError(
            f"Guidance of kind {settings.kind} got the main denoiser with the same condition as its guide, which "
            "changes nothing. Load the guide from its own snapshot."
        )
    guide_condition = condition if settings.guide_sees_condition else None

    def denoise(x: Float[Tensor, "b c h w"], sigma: Float[Tensor, ""]) -> Float[Tensor, "b c h w"]:
        if sigma.ndim:
            raise DiffusionInputError(
                f"A guided denoiser needs one noise level for the batch, got shape {list(sigma.shape)}."
            )
        if guiding is None or not settings.applies(float(sigma)):
            return main(x, sigma, condition)
        guide_value = guiding(x, sigma, guide_condition)
        if settings.weight == 0:
            return guide_value
        return guide(guide_value, main(x, sigma, condition), settings.weight)

    return denoise
