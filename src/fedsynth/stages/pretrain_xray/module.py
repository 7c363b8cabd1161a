"""ChestMNIST pretraining of the image encoder (Eq. 10)."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics.classification import MultilabelAUROC

from fedsynth.models.multilabel import MultiLabelClassifier
from fedsynth.stages.fusion_encoder.network import xray_backbone


class XrayPretraining(L.LightningModule):
    """Multi-label classification with positive weights w_l = negatives / positives (Eq. 10).

    Args:
        positive_weight: w_l from training counts, one per label.
        backbone: ``conv`` or ``timm:NAME``.
        image_channels: Widths of the conv backbone.
        token_dim: Length of the image embedding.
        normalization: ``batch`` or ``group``.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
    """

    def __init__(
        self,
        *,
        positive_weight: list[float],
        backbone: str,
        image_channels: list[int],
        token_dim: int,
        normalization: str,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        encoder = xray_backbone(
            {
                "backbone": backbone,
                "image_channels": image_channels,
                "token_dim": token_dim,
                "normalization": normalization,
            }
        )
        self.network = MultiLabelClassifier(encoder, num_labels=len(positive_weight))
        self.loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(positive_weight))
        # Labels that the validation images can rank: the others have no AUROC. Set by the stage; all by default.
        self.has_both = torch.ones(len(positive_weight), dtype=torch.bool)
        self.val_total: Tensor | float = 0.0  # summed loss and number of records
        self.val_auroc = MultilabelAUROC(len(positive_weight), average="none")

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        loss = self.loss(self.network(batch["image"]), batch["label"].float())
        self.log(
            "train/loss", loss, on_step=False, on_epoch=True, batch_size=len(batch["label"]), sync_dist=True
        )
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        logits = self.network(batch["image"])
        loss = self.loss(logits, batch["label"].float())
        num = torch.tensor(len(logits), dtype=loss.dtype, device=loss.device)
        self.val_total = self.val_total + torch.stack([loss * num, num])
        self.val_auroc.update(logits.float(), batch["label"])

    def on_validation_epoch_end(self) -> None:
        # Pooled over ranks, never averaged. Not by `log`, which rounds the records of unequal ranks to a mean.
        seen = torch.as_tensor(self.val_total, device=self.device).expand(2)  # 0.0 on a rank without records
        total, num = self.trainer.strategy.reduce(seen.clone(), reduce_op="sum")
        self.log("val/loss", total / num, sync_dist=True)
        self.val_total = 0.0
        auroc = self.val_auroc.compute()
        has_both = self.has_both.to(auroc.device)
        mean = auroc[has_both].mean() if has_both.any() else torch.tensor(float("nan"))
        self.log("val/auroc", mean, sync_dist=True)  # equal on all ranks already; Lightning cannot know
        self.val_auroc.reset()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(
            self.parameters(),
            lr=self.hparams["learning_rate"],
            weight_decay=self.hparams["weight_decay"],
            fused=True,
        )
