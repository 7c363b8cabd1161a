"""The U-Net F(x, c_noise, condition) inside EDM's denoiser, plain or magnitude-preserving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError, require_floating, require_positive, require_shape
from fedsynth.models.mp_blocks import MPBlock, MPEmbedding, MPHead, MPStem, mp_join
from fedsynth.models.plain_blocks import PlainBlock, PlainEmbedding, PlainHead, PlainStem, plain_join
from fedsynth.models.unet_parts import BlockPlan

Style = Literal["plain", "magnitude_preserving"]


@dataclass(frozen=True)
class _Parts:
    """What a style builds its U-Net from."""

    embedding: Callable[[int, int, int], nn.Module]
    stem: Callable[[int, int], nn.Module]
    block: Callable[[BlockPlan], nn.Module]
    head: Callable[[int, int], nn.Module]
    join: Callable[[Tensor, Tensor], Tensor]


PARTS: dict[str, _Parts] = {
    "plain": _Parts(PlainEmbedding, PlainStem, PlainBlock, PlainHead, plain_join),
    "magnitude_preserving": _Parts(MPEmbedding, MPStem, MPBlock, MPHead, mp_join),
}


class ImageDenoiser(nn.Module):
    """U-Net with skip connections, conditioned on the noise level and, if ``condition_dim`` > 0, on a vector.

    The layout is ADM's and EDM2's: at each resolution ``blocks_per_level`` blocks down and one more up, some at
    the bottom, and one of its own for each change of size. Output is zero before training. The defaults are for
    28 × 28 images as 4 × 14 × 14 latents: 0.9 M weights with a condition of 1,280. EDM2-XS, for 4 × 64 × 64, is
    ``channels=128, multipliers=(1, 2, 3, 4), blocks_per_level=3, bottom_blocks=2, attention_levels=(2, 3),
    style="magnitude_preserving"``: 125 M weights.

    A condition is a vector of length 1 (a normalized feature, or a one-hot class); it is multiplied by √dim. A
    vector of zeros, a dropped condition, is the same as None. Its length is not checked.

    Args:
        latent_channels: Channels of the latent image.
        condition_dim: Length of the condition; 0 for an unconditional network.
        channels: Width of the first level.
        multipliers: Width of each level relative to it; each further level halves the image.
        blocks_per_level: Blocks of each level on the way down.
        bottom_blocks: Blocks between the ways down and up; the first has self-attention.
        attention_levels: Levels with self-attention, 0 the finest.
        head_channels: Channels of an attention head.
        dropout: Probability inside the blocks, in [0, 1).
        style: "plain" is better for short training, "magnitude_preserving" (EDM2) is the paper's.

    Raises:
        ModelInputError: On sizes below one, unknown style, or levels that do not exist.
    """

    # fidelity: image-denoiser
    def __init__(
        self,
        latent_channels: int = 4,
        condition_dim: int = 0,
        channels: int = 32,
        multipliers: Sequence[int] = (1, 2),
        blocks_per_level: int = 1,
        bottom_blocks: int = 1,
        attention_levels: Sequence[int] = (1,),
        head_channels: int = 64,
        dropout: float = 0.0,
        style: Style = "plain",
    ) -> None:
        super().__init__()
        require_positive(
            "latent_channels, channels and head_channels", latent_channels, channels, head_channels
        )
        require_positive("multipliers", *multipliers)
        require_positive("blocks_per_level and bottom_blocks", blocks_per_level, bottom_blocks)
        _check_options(style, dropout, condition_dim, attention_levels, len(multipliers))
        self.latent_channels, self.condition_dim = latent_channels, condition_dim
        self.size_divisor = 2 ** (len(multipliers) - 1)
        parts = PARTS[style]
        widths = [channels * multiplier for multiplier in multipliers]
        embedding_dim = 4 * channels
        plan = partial(BlockPlan, embedding_dim=embedding_dim, head_channels=head_channels, dropout=dropout)
        encoder, skips = _encoder_plans(plan, widths, blocks_per_level, attention_levels)
        decoder = _decoder_plans(plan, widths, blocks_per_level, attention_levels, skips)
        self.embedding = parts.embedding(channels, embedding_dim, condition_dim)
        self.stem = parts.stem(latent_channels, widths[0])
        self.encoder = nn.ModuleList(parts.block(item) for item in encoder)
        self.bottom = nn.ModuleList(
            parts.block(plan(widths[-1], widths[-1], is_encoder=False, attention=index == 0))
            for index in range(bottom_blocks)
        )
        self.decoder = nn.ModuleList(parts.block(item) for item in decoder)
        self.head = parts.head(widths[0], latent_channels)
        self._join = parts.join
        self._takes_skip = [item.resample != "up" for item in decoder]

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        noise: Float[Tensor, " b"],
        condition: Float[Tensor, "b e"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """F of scaled noisy latents.

        Args:
            x: c_in times the noisy latents; height and width are multiples of ``size_divisor``.
            noise: c_noise of each row.
            condition: One vector a row; None for zeros, and for an unconditional network.

        Raises:
            ModelInputError: On wrong shapes or types, or a condition for an unconditional network.
        """
        self._check(x, noise, condition)
        embedding = self.embedding(noise, condition).to(x.dtype)
        x = self.stem(x)
        skips = [x]
        for block in self.encoder:
            x = block(x, embedding)
            skips.append(x)
        for block in self.bottom:
            x = block(x, embedding)
        for block, takes_skip in zip(self.decoder, self._takes_skip, strict=True):
            if takes_skip:
                x = self._join(x, skips.pop())
            x = block(x, embedding)
        return self.head(x)

    def _check(self, x: Tensor, noise: Tensor, condition: Tensor | None) -> None:
        require_shape("x", x, None, self.latent_channels, None, None)
        require_floating("x", x)
        require_shape("noise", noise, len(x))
        if x.shape[2] % self.size_divisor or x.shape[3] % self.size_divisor:
            raise ModelInputError(
                f"Latents of {x.shape[2]} x {x.shape[3]} cannot be halved for every level; their sides must be "
                f"multiples of {self.size_divisor}. Resize the images or use fewer multipliers."
            )
        if condition is not None and not self.condition_dim:
            raise ModelInputError(
                f"This network is unconditional (condition_dim is 0) but got a condition {list(condition.shape)}."
            )


def _encoder_plans(
    plan: Callable[..., BlockPlan], widths: Sequence[int], num_blocks: int, attention_levels: Sequence[int]
) -> tuple[list[BlockPlan], list[int]]:
    """Blocks on the way down, and the channels of each skip connection, the stem's first."""
    plans, skips = [], [widths[0]]
    for level, width in enumerate(widths):
        if level:
            plans.append(plan(skips[-1], skips[-1], is_encoder=True, resample="down"))
            skips.append(skips[-1])
        for _ in range(num_blocks):
            plans.append(plan(skips[-1], width, is_encoder=True, attention=level in attention_levels))
            skips.append(width)
    return plans, skips


def _decoder_plans(
    plan: Callable[..., BlockPlan],
    widths: Sequence[int],
    num_blocks: int,
    attention_levels: Sequence[int],
    skips: Sequence[int],
) -> list[BlockPlan]:
    """Blocks on the way up; each but those that enlarge the image takes one skip connection, last first."""
    plans, trunk, waiting = [], widths[-1], list(skips)
    for level, width in reversed(list(enumerate(widths))):
        if level < len(widths) - 1:
            plans.append(plan(trunk, trunk, is_encoder=False, resample="up"))
        for _ in range(num_blocks + 1):
            channels_in = trunk + waiting.pop()
            plans.append(plan(channels_in, width, is_encoder=False, attention=level in attention_levels))
            trunk = width
    return plans


def _check_options(
    style: str, dropout: float, condition_dim: int, attention_levels: Sequence[int], num_levels: int
) -> None:
    if style not in PARTS:
        raise ModelInputError(f"style must be one of {', '.join(PARTS)}, got {style!r}.")
    if not 0 <= dropout < 1:
        raise ModelInputError(f"dropout must be in [0, 1), got {dropout}. Typical: 0.")
    if condition_dim < 0:
        raise ModelInputError(f"condition_dim must be at least 0, got {condition_dim}. 0 is unconditional.")
    if any(not 0 <= level < num_levels for level in attention_levels):
        raise ModelInputError(
            f"attention_levels must lie in [0, {num_levels - 1}], one level a multiplier, "
            f"got {list(attention_levels)}."
        )
