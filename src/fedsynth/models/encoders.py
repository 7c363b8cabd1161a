"""Modality encoders E_I and E_E of FedDP-PALD, Eq. (11): one vector per chest X-ray or ECG window.

Initial weights come from torch's global generator, as everywhere in torch.nn; whoever builds a network
for an experiment seeds that generator first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError, require_floating, require_positive, require_shape

Normalization = Literal["batch", "group"]
Pooling = Literal["max", "average", "stride"]

_POOLS: dict[str, Callable[[], list[nn.Module]]] = {
    "max": lambda: [nn.MaxPool2d(2)],
    "average": lambda: [nn.AvgPool2d(2)],
    "stride": list,
}


class ImageEncoder(nn.Module):
    """Convolutional image encoder, FedDP-PALD Eq. (11): e^I = E_I(x^I).

    Blocks of 3x3 convolution, normalization and GELU; the resolution is halved after every block but the
    last (28 → 14 → 7 for MedMNIST images), then global average pooling, a linear layer and LayerNorm.
    The paper gives the block and the 128 output features; widths and pooling are ours.

    With BatchNorm, activations are kept in channels_last order (1.2 to 1.4 times faster per CPU training step
    than contiguous ones); weights stay contiguous, so they can be stored as they are. Without BatchNorm
    activations are contiguous, because Opacus takes that for granted: for channels_last ones its per-record
    gradients of convolutions are wrong, without an error (opacus 1.6, ``unfold2d``).

    Args:
        channels: Output channels of each block.
        embedding_dim: Length of e^I.
        normalization: ``"batch"``, or ``"group"`` for GroupNorm as Opacus substitutes it: batch statistics
            mix records, so DP-SGD refuses BatchNorm.
        in_channels: 1 for X-rays.
        pooling: ``"max"``, ``"average"``, or ``"stride"`` (the convolution itself takes steps of two; about
            twice as fast, but features are never computed at full resolution).
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 128),
        embedding_dim: int = 128,
        normalization: Normalization = "batch",
        in_channels: int = 1,
        pooling: Pooling = "max",
    ) -> None:
        super().__init__()
        require_positive("channels", *channels)
        require_positive("embedding_dim and in_channels", embedding_dim, in_channels)
        if pooling not in _POOLS:
            raise ModelInputError(f"pooling must be one of {sorted(_POOLS)}, got {pooling!r}.")
        self.in_channels, self.embedding_dim = in_channels, embedding_dim
        self.min_size = 2 ** (len(channels) - 1)
        layers: list[nn.Module] = []
        for index, (width_in, width_out) in enumerate(zip((in_channels, *channels), channels, strict=False)):
            halves = index < len(channels) - 1
            stride = 2 if halves and pooling == "stride" else 1
            layers += [
                nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(width_out),
                nn.GELU(),
                *(_POOLS[pooling]() if halves else []),
            ]
        self.blocks: Any = with_normalization(nn.Sequential(*layers), normalization)
        self.head = nn.Sequential(nn.Linear(channels[-1], embedding_dim), nn.LayerNorm(embedding_dim))

    def forward(self, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b e"]:
        """Embeddings of normalized images of any size from ``min_size`` upward."""
        check_image(image, self.in_channels, self.min_size)
        # Looked up here and not at construction: Opacus' ModuleValidator.fix may replace it afterwards.
        has_batch_norm = isinstance(self.blocks[1], nn.BatchNorm2d)
        image = _channels_last(image) if has_batch_norm else _contiguous(image)
        return self.head(self.blocks(image).mean(dim=(2, 3)))


class SignalEncoder(nn.Module):
    """1-D convolutional encoder of ECG windows, FedDP-PALD Eq. (11): e^E = E_E(x^E).

    The paper says "analogous" to the image encoder: blocks of convolution, normalization and GELU, each
    halving the length (256 → 128 → 64 → 32), then average pooling over time, a linear layer and LayerNorm.

    Args:
        channels: Output channels of each block.
        kernel_sizes: One odd kernel size per block, in samples.
        stride: Step of every convolution.
        embedding_dim: Length of e^E.
        normalization: As in ``ImageEncoder``.
        in_channels: Leads; 1 in the paper.
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 128),
        kernel_sizes: Sequence[int] = (7, 5, 3),
        stride: int = 2,
        embedding_dim: int = 128,
        normalization: Normalization = "batch",
        in_channels: int = 1,
    ) -> None:
        super().__init__()
        require_positive("channels", *channels)
        require_positive("kernel_sizes", *kernel_sizes)
        require_positive("stride, embedding_dim and in_channels", stride, embedding_dim, in_channels)
        if len(kernel_sizes) != len(channels):
            raise ModelInputError(
                f"kernel_sizes needs one entry a block, got {len(kernel_sizes)} for {len(channels)} channels."
            )
        if any(size % 2 == 0 for size in kernel_sizes):
            raise ModelInputError(
                f"kernel_sizes must be odd to keep windows centered, got {list(kernel_sizes)}."
            )
        self.in_channels, self.embedding_dim = in_channels, embedding_dim
        layers: list[nn.Module] = []
        widths = zip((in_channels, *channels), channels, kernel_sizes, strict=False)
        for width_in, width_out, size in widths:
            layers += [
                nn.Conv1d(width_in, width_out, size, stride, padding=size // 2, bias=False),
                nn.BatchNorm1d(width_out),
                nn.GELU(),
            ]
        self.blocks = with_normalization(nn.Sequential(*layers), normalization)
        self.head = nn.Sequential(nn.Linear(channels[-1], embedding_dim), nn.LayerNorm(embedding_dim))

    def forward(self, signal: Float[Tensor, "b c t"]) -> Float[Tensor, "b e"]:
        """Embeddings of normalized windows of any length."""
        require_shape("signal", signal, None, self.in_channels, None)
        require_floating("signal", signal)
        return self.head(self.blocks(signal).mean(dim=2))


def check_image(image: Tensor, in_channels: int, min_size: int) -> None:
    """Refuse images of the wrong type or channel count, or too small to be halved after each block."""
    require_shape("image", image, None, in_channels, None, None)
    require_floating("image", image)
    if min(image.shape[2:]) < min_size:
        raise ModelInputError(
            f"image must be at least {min_size} x {min_size} pixels for this many blocks, "
            f"got {list(image.shape[2:])}; use fewer channels or larger images."
        )


def _channels_last(image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """The same image with channels_last strides.

    ``contiguous(memory_format=...)`` leaves one-channel images alone, because both orders then describe the
    same memory, yet convolutions choose their order by the strides; so these are rewritten here.
    """
    if image.shape[1] > 1:
        return image.contiguous(memory_format=torch.channels_last)
    return image.squeeze(1).contiguous().unsqueeze(-1).permute(0, 3, 1, 2)


def _contiguous(image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """The same image with contiguous strides, those of one-channel images too (see ``_channels_last``)."""
    return image.contiguous() if image.shape[1] > 1 else image.squeeze(1).contiguous().unsqueeze(1)


def with_normalization(blocks: nn.Module, normalization: Normalization) -> nn.Module:
    """The same blocks, or a copy with GroupNorm in place of BatchNorm, by Opacus' own replacement rule."""
    if normalization == "batch":
        return blocks
    if normalization != "group":
        raise ModelInputError(f'normalization must be "batch" or "group", got {normalization!r}.')
    from opacus.validators import ModuleValidator  # slow to import, and only this option needs it

    return ModuleValidator.fix(blocks)
