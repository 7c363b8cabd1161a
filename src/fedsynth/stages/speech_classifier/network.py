"""The speech network, from a stage's settings or from its artifact; and its answers to a whole split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.data.speech import SpeechSplit
from fedsynth.models.speech import SpeechClassifier
from fedsynth.pipeline.artifacts import Artifact

MODALITIES = ("audio", "text")
NUMBERS = ("hidden_dim", "embedding_dim", "num_heads", "num_layers", "dropout")


def network_numbers(settings: object, split: SpeechSplit) -> dict[str, Any]:
    """What builds the network: settings, and the numbers of features that the data have."""
    numbers = {name: getattr(settings, name) for name in NUMBERS}
    return {**numbers, "audio_dim": split.audio.shape[2], "text_dim": split.text.shape[2]}


def load_network(encoder: Artifact, split: SpeechSplit) -> SpeechClassifier:
    """The trained network of a ``speech_classifier`` artifact, in evaluation mode."""
    settings = encoder.manifest["settings"]
    numbers: Mapping[str, Any] = {name: settings[name] for name in NUMBERS}
    network = SpeechClassifier(audio_dim=split.audio.shape[2], text_dim=split.text.shape[2], **numbers)
    network.load_state_dict(encoder.load("model.safetensors"))
    return network.eval()


@torch.inference_mode()
def predict(
    network: SpeechClassifier, split: SpeechSplit, *, batch_size: int = 256
) -> tuple[Float[Tensor, "n class"], dict[str, Float[Tensor, "n dim"]]]:
    """Logits and embeddings of every segment, in its place, in evaluation mode on the network's device.

    Segments of similar length go together, so that little is computed for padding.
    """
    device = next(network.parameters()).device
    order = split.audio_length.argsort(stable=True)
    logits, embeddings = [], []
    network.eval()
    for rows in order.split(batch_size):
        audio, text = (
            getattr(split, name)[rows][:, : int(getattr(split, f"{name}_length")[rows].max())].to(device)
            for name in MODALITIES
        )
        lengths = (getattr(split, f"{name}_length")[rows].to(device) for name in MODALITIES)
        audio_length, text_length = lengths
        output = network(audio, audio_length, text, text_length)
        logits.append(output.logits.float().cpu())
        embeddings.append({name: value.float().cpu() for name, value in output.embeddings.items()})
    back = order.argsort()
    joined = {name: torch.cat([part[name] for part in embeddings])[back] for name in embeddings[0]}
    return torch.cat(logits)[back], joined
