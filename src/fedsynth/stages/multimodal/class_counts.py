"""How many records of each class the clients hold."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.federated.client import ClientId
from fedsynth.stages.multimodal.module import NUM_CLASSES


def count_classes(
    label: Int64[Tensor, " n"], client: Int64[Tensor, " n"]
) -> dict[ClientId | None, Int64[Tensor, " class"]]:
    """Records of each class by client, and of all clients together under the key None."""
    counts: dict[ClientId | None, Tensor] = {None: torch.bincount(label, minlength=NUM_CLASSES)}
    for name in client.unique().tolist():
        counts[name] = torch.bincount(label[client == name], minlength=NUM_CLASSES)
    return counts
