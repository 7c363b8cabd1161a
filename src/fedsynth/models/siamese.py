"""The identity network of PSO-secure sharing: does this pair of images show one person?

P(x, x') of Packhäuser et al. (2022, Sci. Rep. 12:14851), as the identity filter of PSO-secure sharing uses it: one
trunk embeds both images, a head compares the embeddings. Both heads are symmetric in the pair by construction, so
images are embedded once and pairs cost only the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError, require_positive, require_shape

Head = Literal["difference", "cosine"]
DOWNLOAD = "download"
#: Mean and deviation of ImageNet's channels, averaged: what pretrained weights expect of grey images.
IMAGENET_GREY = (0.449, 0.226)


class ConvTrunk(nn.Module):
    """Two 3×3 convolutions a width, the second with stride 2 except at the last width; pooled to a vector.

    Three widths make six convolutions: enough for images of 28 to 64 pixels (0.29 M parameters).

    Args:
        channels: Widths.
    """

    def __init__(self, channels: Sequence[int] = (32, 64, 128)) -> None:
        super().__init__()
        require_positive("channels", *channels)
        layers: list[nn.Module] = []
        widths = zip((1, *channels), channels, strict=False)
        for number, (width_in, width) in enumerate(widths, start=1):
            stride = 1 if number == len(channels) else 2
            layers += [*_block(width_in, width, 1), *_block(width, width, stride)]
        self.blocks = nn.Sequential(*layers)
        self.num_features = channels[-1]

    def forward(self, image: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n d"]:
        """Features, averaged over places."""
        # One-channel images in channels_last order, which convolutions on the CPU compute faster; ``contiguous`` leaves
        # them as they are, because both orders describe the same memory.
        image = image.squeeze(1).contiguous().unsqueeze(-1).permute(0, 3, 1, 2)
        return self.blocks(image).mean(dim=(2, 3))


def _block(width_in: int, width: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(width), nn.ReLU()]


def timm_trunk(name: str, weights: str | None) -> nn.Module:
    """A timm network without its classifier, for one-channel images.

    Args:
        name: A timm model name; the paper's is ``resnet50``.
        weights: A local timm weight file; ``download`` for the weights timm itself names; None for random ones.

    Raises:
        ModelInputError: If timm does not know the name, the file is missing or holds another architecture.
    """
    import timm  # slow to import; small images do without

    if not timm.is_model(name):
        near = ", ".join(get_close_matches(name, timm.list_models())) or "none, see timm.list_models()"
        raise ModelInputError(f"timm has no model named {name!r}. Similar names: {near}.")
    # timm sums the stored first layer over color channels: the same as repeating a grey image thrice.
    options: dict[str, Any] = {"in_chans": 1, "num_classes": 0}
    if weights in (None, DOWNLOAD):
        try:
            return timm.create_model(name, pretrained=weights == DOWNLOAD, **options)
        except OSError as error:
            raise ModelInputError(
                f"The weights of {name} could not be fetched: {str(error)[:300]} Give weights the path of a local "
                "timm weight file."
            ) from error
    if not Path(str(weights)).is_file():
        raise ModelInputError(f"weights {weights} is not a file; give a local timm weight file of {name}.")
    network = timm.create_model(name, **options)
    # timm leaves random what a file lacks, without a word.
    stored = timm.models.load_state_dict(str(weights))
    lacking = [key for key in network.state_dict() if key not in stored and "num_batches_tracked" not in key]
    if lacking:
        raise ModelInputError(
            f"weights {weights} do not fit {name}: the file lacks {len(lacking)} of its tensors, e.g. {lacking[0]}. "
            "Give the weight file of this very architecture."
        )
    try:
        overlay = {"file": str(weights)}
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except RuntimeError as error:
        raise ModelInputError(f"weights {weights} do not fit {name}: {str(error)[:300]}") from error


class SiameseNetwork(nn.Module):
    """Embeddings of images, and the probability that two embeddings are of one person.

    Args:
        backbone: ``conv`` or ``timm:NAME``.
        channels: Widths of the conv trunk.
        embedding_dim: Length of an embedding; 128 in the paper.
        head: ``difference``: fc(|σ(e) - σ(e')|), the paper's. ``cosine``: the cosine similarity of e and e', for
            embeddings trained with a contrastive loss; it has no weights.
        weights: For the timm trunk, see ``timm_trunk``.
        input_size: Side in pixels to which images are resized first; None takes them as they are.
        pixel_mean, pixel_std: Of grey levels in [0, 1]; stored with the weights.

    Raises:
        ModelInputError: For an impossible value.
    """

    scale: Tensor
    bias: Tensor
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        *,
        backbone: str = "conv",
        channels: Sequence[int] = (32, 64, 128),
        embedding_dim: int = 128,
        head: Head = "difference",
        weights: str | None = None,
        input_size: int | None = None,
        pixel_mean: float = 0.5,
        pixel_std: float = 0.25,
    ) -> None:
        super().__init__()
        require_positive("embedding_dim", embedding_dim)
        if head not in ("difference", "cosine"):
            raise ModelInputError(f'head must be "difference" or "cosine", got {head!r}.')
        family, _, name = backbone.partition(":")
        if backbone != "conv" and not (family == "timm" and name):
            raise ModelInputError(f'backbone must be "conv" or "timm:<model name>", got {backbone!r}.')
        self.trunk: Any = ConvTrunk(channels) if backbone == "conv" else timm_trunk(name, weights)
        num_features = cast(int, self.trunk.num_features)
        self.embedding = nn.Linear(num_features, embedding_dim)
        self.head = nn.Linear(embedding_dim, 1) if head == "difference" else None
        self.input_size = input_size
        # The calibrated logit is scale · score + bias; the identity until ``calibrate``.
        for key, value in (
            ("scale", 1.0),
            ("bias", 0.0),
            ("pixel_mean", pixel_mean),
            ("pixel_std", pixel_std),
        ):
            self.register_buffer(key, torch.tensor(float(value)))

    def pixels(self, image: UInt8[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 s s"]:
        """Grey levels in [0, 1], of the network's input size."""
        require_shape("image", image, None, 1, None, None)
        if image.dtype != torch.uint8:
            raise ModelInputError(f"image must be uint8 grey levels, got {image.dtype}.")
        size, values = self.input_size, image.float() / 255
        if size is None or tuple(image.shape[2:]) == (size, size):
            return values
        return nn.functional.interpolate(values, (size, size), mode="bilinear", antialias=True)

    def forward(self, pixels: Float[Tensor, "n 1 s s"]) -> Float[Tensor, "n e"]:
        """Embeddings of grey levels in [0, 1]."""
        normalized = (pixels - self.pixel_mean) / self.pixel_std
        return self.embedding(self.trunk(normalized))

    def score(self, first: Float[Tensor, "n e"], second: Float[Tensor, "n e"]) -> Float[Tensor, " n"]:
        """The head's own output for each pair, before calibration: a logit, or a cosine similarity."""
        if self.head is None:
            return nn.functional.cosine_similarity(first, second, dim=1)
        return self.head((first.sigmoid() - second.sigmoid()).abs()).squeeze(1)

    def probability(self, first: Float[Tensor, "n e"], second: Float[Tensor, "n e"]) -> Float[Tensor, " n"]:
        """P(x, x') in [0, 1], for equal prior probabilities of "one person" and "two persons"."""
        return (self.scale * self.score(first, second) + self.bias).sigmoid()

    def calibrate(self, scale: float, bias: float) -> None:
        """Let ``probability`` be σ(scale · score + bias)."""
        self.scale.fill_(scale)
        self.bias.fill_(bias)
