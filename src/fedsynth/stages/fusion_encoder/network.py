"""The fusion network, from a stage's settings or from its artifact; and its predictions on a whole split."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedsynth.models.encoders import SignalEncoder
from fedsynth.models.fusion import GatedFusion, MeanFusion
from fedsynth.models.fusion_classifier import FusionClassifier, FusionOutput
from fedsynth.models.pretrained_encoder import image_encoder
from fedsynth.pipeline.artifacts import Artifact

MODALITIES = ("image", "ecg")  # the order of every mask
NUMBERS = (
    "backbone", "image_channels", "signal_channels", "signal_kernels", "normalization", "fusion", "token_dim",
    "num_heads", "latent_dim", "dropout", "missing",
)  # fmt: skip


def network_numbers(settings: object) -> dict[str, Any]:
    """Those settings of a ``fusion_encoder`` that build its network, as plain values."""
    numbers = {name: getattr(settings, name) for name in NUMBERS}
    return {name: list(value) if isinstance(value, list) else value for name, value in numbers.items()}


def modality_mask(modalities: Collection[str]) -> Bool[Tensor, " 2"]:
    """Which modalities are shown, in the order (image, ECG)."""
    return torch.tensor([name in modalities for name in MODALITIES])


def xray_backbone(settings: Mapping[str, Any]) -> torch.nn.Module:
    """The image encoder that both the pretraining and the fusion stage use."""
    widths = {"channels": settings["image_channels"]} if settings["backbone"] == "conv" else {}
    return image_encoder(
        settings["backbone"],
        embedding_dim=settings["token_dim"],
        normalization=settings["normalization"],
        **widths,
    )


def build_network(settings: Mapping[str, Any]) -> FusionClassifier:
    """The network of Eqs. (11)–(16) with fresh weights, drawn from torch's global stream."""
    dim = settings["token_dim"]
    signal = SignalEncoder(
        settings["signal_channels"],
        settings["signal_kernels"],
        embedding_dim=dim,
        normalization=settings["normalization"],
    )
    if settings["fusion"] == "gated":
        fusion: GatedFusion | MeanFusion = GatedFusion(
            dim, dim, dim, settings["num_heads"], settings["dropout"]
        )
    else:
        fusion = MeanFusion(dim, dim, dim, settings["dropout"])
    return FusionClassifier(
        xray_backbone(settings), signal, fusion, settings["latent_dim"], missing=settings["missing"]
    )


def load_network(encoder: Artifact) -> FusionClassifier:
    """The trained network of a ``fusion_encoder`` artifact, in evaluation mode."""
    network = build_network(encoder.manifest["settings"])
    network.load_state_dict(encoder.load("model.safetensors"))
    return network.eval()


@torch.inference_mode()
def predict(
    network: FusionClassifier,
    image: Float[Tensor, "n c h w"],
    ecg: Float[Tensor, "n leads t"],
    mask: Bool[Tensor, " 2"] | None = None,
    *,
    batch_size: int = 512,
) -> FusionOutput:
    """Outputs for a whole split, in evaluation mode, on the network's device and back on the CPU.

    Args:
        network: Trained; its mode is restored afterwards.
        image: Normalized images.
        ecg: Normalized beats.
        mask: Modalities shown (image, ECG), the same for every record; both if None.
        batch_size: Records at a time; does not change the result but in the last bits.
    """
    was_training = network.training
    device = next(network.parameters()).device
    network.eval()
    shown = torch.ones(2, dtype=torch.bool) if mask is None else mask
    parts = []
    for image_part, ecg_part in zip(image.split(batch_size), ecg.split(batch_size), strict=True):
        masks = shown.expand(len(image_part), 2).to(device)
        parts.append(network(image_part.to(device), ecg_part.to(device), masks))
    network.train(was_training)
    return FusionOutput(
        **{
            field.name: torch.cat([getattr(part, field.name).float().cpu() for part in parts])
            for field in fields(FusionOutput)
        }
    )
