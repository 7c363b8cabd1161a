"""The TSTR classifier (Eq. 32)."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.models.classifiers import LatentClassifier
from fedsynth.stages.training import EpochMean


class TSTRClassifier(L.LightningModule):
    """Binary cross-entropy on latents of one arm; inputs standardized by that arm's own statistics.

    Args:
        dim: Length of a latent.
        hidden_dims: Hidden widths.
        dropout: Dropout rate.
        learning_rate: Of Adam.
    """

    def __init__(self, *, dim: int, hidden_dims: list[int], dropout: float, learning_rate: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.mean_loss = EpochMean()
        self.network = LatentClassifier(dim, tuple(hidden_dims), dropout)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        logit = self.network(batch["latent"])
        loss = nn.functional.binary_cross_entropy_with_logits(logit, batch["label"].to(logit.dtype))
        self.mean_loss.add(loss, len(logit))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.mean_loss.log(self, "train/loss")

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.hparams["learning_rate"], fused=True)
