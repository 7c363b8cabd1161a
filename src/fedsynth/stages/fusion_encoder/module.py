"""Local training of the fusion network on a client (Eqs. 9, 16, 17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC

from fedsynth.data.paired import modality_masks
from fedsynth.stages.fusion_encoder.network import MODALITIES, build_network, modality_mask


class FusionEncoder(L.LightningModule):
    """Cross-entropy on both classes with modality dropout; federated or, in a stock Trainer, centralized.

    Args:
        network: Numbers that build the network; see ``FusionEncoderSettings``.
        modality_dropout: p_m of Eq. (9): masks are drawn anew for every batch. Without effect for a network
            of one modality, which Eq. (9) never drops.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        modalities: What the network is trained and validated with. The encoder of a modality left out gets no
            gradient, so AdamW leaves it as it was initialized.
    """

    def __init__(
        self,
        *,
        network: dict[str, Any],
        modality_dropout: float,
        learning_rate: float,
        weight_decay: float,
        modalities: Sequence[str] = MODALITIES,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = build_network(network)
        self.modality_dropout = modality_dropout
        self.shown = modality_mask(modalities)
        self.val_auroc = BinaryAUROC()

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        mask = self.training_mask(len(batch["label"])).to(self.device)
        output = self.network(batch["image"], batch["ecg"], mask)
        return nn.functional.cross_entropy(output.logits, batch["label"])

    def training_mask(self, num: int) -> Bool[Tensor, "num 2"]:
        """Eq. (9), drawn from the global CPU stream, which the loops seed for each client and round or epoch."""
        if not bool(self.shown.all()):
            return self.shown.expand(num, 2)
        return modality_masks(num, self.modality_dropout, torch.default_generator)

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        mask = self.shown.expand(len(batch["label"]), 2).to(self.device)
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
