"""Image encoders from the timm library, for images larger than MedMNIST's 28 x 28, and the choice by name."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.models.encoders import ImageEncoder, Normalization, check_image, with_normalization
from fedsynth.models.inputs import ModelInputError, require_positive


class TimmImageEncoder(nn.Module):
    """A timm backbone followed by a linear layer and LayerNorm, with the output of ``ImageEncoder``.

    Not part of FedDP-PALD, whose encoder is ``ImageEncoder``. Nothing is ever downloaded.

    Args:
        name: A timm model name, e.g. ``"resnet18"``.
        embedding_dim: Length of the embedding.
        normalization: ``"group"`` replaces BatchNorm by GroupNorm as in ``ImageEncoder``.
        in_channels: Image channels; timm adapts stored first-layer weights to this number.
        weights_path: A local timm weight file (``.safetensors`` or ``.pth``); null starts from random ones.

    Raises:
        ModelInputError: If timm does not know the name or the weight file does not exist.
    """

    def __init__(
        self,
        name: str,
        embedding_dim: int = 128,
        normalization: Normalization = "batch",
        in_channels: int = 1,
        weights_path: str | Path | None = None,
    ) -> None:
        super().__init__()
        require_positive("embedding_dim and in_channels", embedding_dim, in_channels)
        if not timm.is_model(name):
            near = ", ".join(get_close_matches(name, timm.list_models())) or "none, see timm.list_models()"
            raise ModelInputError(f"timm has no model named {name!r}. Similar names: {near}.")
        options: dict[str, Any] = {"pretrained": False}
        if weights_path is not None:
            if not Path(weights_path).is_file():
                raise ModelInputError(
                    f"weights_path {weights_path} is not a file; give a local timm weight file."
                )
            options = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(weights_path)}}
        self.in_channels, self.embedding_dim = in_channels, embedding_dim
        backbone: Any = timm.create_model(name, in_chans=in_channels, num_classes=0, **options)
        width = getattr(backbone, "head_hidden_size", backbone.num_features)
        self.backbone = with_normalization(backbone, normalization)
        self.head = nn.Sequential(nn.Linear(width, embedding_dim), nn.LayerNorm(embedding_dim))

    def forward(self, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b e"]:
        """Embeddings of normalized images; the sizes allowed are the backbone's own."""
        check_image(image, self.in_channels, min_size=1)
        return self.head(self.backbone(image))


def image_encoder(backbone: str = "conv", **options: Any) -> ImageEncoder | TimmImageEncoder:
    """The image encoder called ``backbone``: ``"conv"`` (the paper's) or ``"timm:<model name>"``.

    Args:
        backbone: Which encoder.
        **options: Passed on to ``ImageEncoder`` or ``TimmImageEncoder``.

    Raises:
        ModelInputError: If the name has neither form.
    """
    if backbone == "conv":
        return ImageEncoder(**options)
    source, _, name = backbone.partition(":")
    if source == "timm" and name:
        return TimmImageEncoder(name, **options)
    raise ModelInputError(f'backbone must be "conv" or "timm:<model name>", got {backbone!r}.')
