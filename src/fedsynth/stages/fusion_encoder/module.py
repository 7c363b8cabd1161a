"""Local training of the fusion network on a client (Eqs. 9, 16, 17)."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC

from fedsynth.data.paired import modality_masks
from fedsynth.stages.fusion_encoder.network import build_network


class FusionEncoder(L.LightningModule):
    """Cross-entropy on both classes with modality dropout; federated or, in a stock Trainer, centralized.

    Args:
        network: Numbers that build the network; see ``FusionEncoderSettings``.
        modality_dropout: p_m of Eq. (9): masks are drawn anew for every batch.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
    """

    def __init__(
        self, *, network: dict[str, Any], modality_dropout: float, learning_rate: float, weight_decay: float
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = build_network(network)
        self.modality_dropout = modality_dropout
        self.val_auroc = BinaryAUROC()

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        # The global CPU stream: the federated loop seeds it for each client and round.
        mask = modality_masks(len(batch["label"]), self.modality_dropout, torch.default_generator)
        output = self.network(batch["image"], batch["ecg"], mask.to(self.device))
        return nn.functional.cross_entropy(output.logits, batch["label"])

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        mask = torch.ones(len(batch["label"]), 2, dtype=torch.bool, device=self.device)
        logits = self.network(batch["image"], batch["ecg"], mask).logits.float()
        loss = nn.functional.cross_entropy(logits, batch["label"])
        # Every federated rank validates the whole split with the same global model: nothing to pool there.
        self.log("val/loss", loss, on_step=False, on_epoch=True, batch_size=len(logits), sync_dist=True)
        self.val_auroc.update(logits.softmax(1)[:, 1], batch["label"])
        self.log("val/auroc", self.val_auroc, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(
            self.parameters(),
            lr=self.hparams["learning_rate"],
            weight_decay=self.hparams["weight_decay"],
            fused=True,
        )
