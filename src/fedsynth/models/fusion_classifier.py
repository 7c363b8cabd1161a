"""The federated multimodal classifier of FedDP-PALD, Eqs. (11)-(16), whose latents the clients release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedsynth.models.fusion import GatedFusion, MeanFusion, check_mask
from fedsynth.models.inputs import (
    ModelInputError,
    embedding_dim,
    require_floating,
    require_positive,
    require_shape,
)


@dataclass(frozen=True)
class FusionOutput:
    """What the classifier says about a batch."""

    latent: Float[Tensor, "b d"]
    """h of Eq. (16), unclipped."""
    logits: Float[Tensor, "b classes"]
    """Before the softmax of Eq. (16)."""
    gates: Float[Tensor, "b 2"]
    """g of Eq. (14), order (image, ECG)."""
    attention: Float[Tensor, "b 2 2"]
    """Head-averaged weights of Eq. (13), [b, query, key]; rows sum to 1."""
    image: Float[Tensor, "b e"]
    """e^I of Eq. (11), zero where the image is missing."""
    ecg: Float[Tensor, "b e"]
    """e^E, zero where the ECG is missing."""


class FusionClassifier(nn.Module):
    """Two encoders, a fusion, a latent head and a classifier: FedDP-PALD Eqs. (11)-(16).

    The input of a missing modality, whatever it holds (NaN too), influences nothing: neither its own record
    nor, through BatchNorm, the others. Its embedding is set to zero, so its token is the constant b_I or b_E.
    A record with no modality present gets the logits of the zero vector.

    The latent head is a plain linear layer: the paper's mean latent norms differ by class (7.4 and 10.1),
    which a closing LayerNorm would forbid.

    Args:
        image_encoder: Module with an ``embedding_dim``, images to [b, embedding_dim].
        signal_encoder: The same for ECG windows.
        fusion: ``GatedFusion`` or ``MeanFusion`` of those embedding lengths.
        latent_dim: Length of h.
        num_classes: Classes.
        missing: What the encoders see of missing inputs in training. ``"zero"``: zeros, which enter
            BatchNorm's statistics; shapes are static, as DP-SGD and compilation need. ``"skip"``: nothing, so
            the statistics hold present inputs only, at less work; batch sizes then vary from layer to layer.
            In evaluation mode both give the same output, "skip" sooner. Do not use "skip" with Opacus, whose
            per-record gradients assume that every layer saw every record.

    Raises:
        ModelInputError: If the parts do not fit together, or an input has the wrong shape or type.
    """

    def __init__(
        self,
        image_encoder: nn.Module,
        signal_encoder: nn.Module,
        fusion: GatedFusion | MeanFusion,
        latent_dim: int = 64,
        num_classes: int = 2,
        missing: Literal["zero", "skip"] = "zero",
    ) -> None:
        super().__init__()
        require_positive("latent_dim and num_classes", latent_dim, num_classes)
        if missing not in ("zero", "skip"):
            raise ModelInputError(f'missing must be "zero" or "skip", got {missing!r}.')
        got = (embedding_dim(image_encoder), embedding_dim(signal_encoder))
        if got != (fusion.image_dim, fusion.signal_dim):
            raise ModelInputError(
                f"The fusion expects {fusion.image_dim} image and {fusion.signal_dim} ECG features, "
                f"but the encoders give {got[0]} and {got[1]}; set their embedding_dim to match."
            )
        self.missing = missing
        self.latent_dim, self.num_classes = latent_dim, num_classes
        self.image_encoder = image_encoder
        self.signal_encoder = signal_encoder
        self.fusion = fusion
        # fidelity: latent-head
        self.latent_head = nn.Linear(fusion.token_dim, latent_dim)  # H_φ
        self.classifier = nn.Linear(latent_dim, num_classes)  # W_c, b_c

    def forward(
        self, image: Float[Tensor, "b c h w"], ecg: Float[Tensor, "b leads t"], mask: Bool[Tensor, "b 2"]
    ) -> FusionOutput:
        """Eq. (16): h = H_φ(f), p = softmax(W_c h + b_c); the softmax is left to the loss."""
        require_shape("image", image, None, None, None, None)
        require_shape("ecg", ecg, len(image), None, None)
        require_floating("image", image)
        require_floating("ecg", ecg)
        check_mask(mask, len(image))
        image_embedding = self._embed(self.image_encoder, image, mask[:, 0])
        ecg_embedding = self._embed(self.signal_encoder, ecg, mask[:, 1])
        fused, gates, attention = self.fusion(image_embedding, ecg_embedding, mask)
        latent = self.latent_head(fused)
        return FusionOutput(latent, self.classifier(latent), gates, attention, image_embedding, ecg_embedding)

    def _embed(self, encoder: nn.Module, x: Tensor, present: Bool[Tensor, " b"]) -> Float[Tensor, "b e"]:
        """Embeddings of present inputs, zero for missing ones."""
        # fidelity: masked-input-batchnorm
        if self.missing == "skip":
            return _embed_present(encoder, x, present)
        shape = (-1, *[1] * (x.ndim - 1))
        embedding = encoder(torch.where(present.view(shape), x, 0.0))  # not a product: 0 · NaN is NaN
        return torch.where(present.unsqueeze(1), embedding, 0.0)


def _embed_present(encoder: nn.Module, x: Tensor, present: Bool[Tensor, " b"]) -> Float[Tensor, "b e"]:
    rows = present.nonzero().squeeze(1)
    if len(rows) == 0:
        return x.new_zeros(len(x), embedding_dim(encoder))
    if len(rows) == len(x):
        return encoder(x)
    embedding = encoder(x[rows])
    return embedding.new_zeros(len(x), embedding.shape[1]).index_copy(0, rows, embedding)
