"""Training of the DenseNet."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from fedsynth.stages.image_set_kinds import MULTICLASS
from fedsynth.stages.training import EpochMean
from fedsynth.stages.tstr_densenet.augmentation import cropped_and_flipped, shifted


def classification_loss(
    logits: Float[Tensor, "b k"], target: Float[Tensor, "b k"], task: str, weight: Float[Tensor, " k"]
) -> Float[Tensor, ""]:
    """Cross-entropy of one class an image, or the mean binary cross-entropy over labels.

    Args:
        logits: Of each class or label.
        target: Probabilities, one column a class, summing to 1 in a multi-class task: 0 and 1, or soft labels, with
            which a classifier learns what another one says (knowledge distillation at temperature 1).
        task: ``multiclass`` or ``multilabel``.
        weight: Of each class; of labels, that of their positives.

    Returns:
        Of classes Σ_i Σ_c w_c t_ic (−log p_ic) / Σ_i Σ_c w_c t_ic, which for 0 and 1 is PyTorch's weighted mean.
    """
    if task == MULTICLASS:
        weighted = target * weight
        return -(weighted * logits.log_softmax(1)).sum() / weighted.sum()
    return nnf.binary_cross_entropy_with_logits(logits, target, pos_weight=weight)


class DenseNetTraining(L.LightningModule):
    """Trains on augmented images; logs ``train/loss`` and the unweighted ``val/loss`` on real images.

    Args:
        network: Maps gray levels in [0, 1] to logits.
        task: ``multiclass`` or ``multilabel``.
        class_weight: See `classification_loss`.
        augmentation: ``none``, ``shift`` or ``crop_flip``.
        max_shift: Of ``shift``, in pixels.
        crop_size: Of ``crop_flip``, in pixels.
        optimizer: ``adam`` (weight decay in the gradient) or ``adamw`` (decoupled).
        learning_rate: Its first value.
        weight_decay: See ``optimizer``.
        schedule: ``constant``, ``cosine`` to 0 by steps, or ``plateau`` of the validation loss.
        plateau_factor: By which a plateau multiplies the learning rate.
        plateau_patience: Epochs without a lower validation loss that are borne.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        task: str,
        class_weight: list[float],
        augmentation: str,
        max_shift: int,
        crop_size: int | None,
        optimizer: str,
        learning_rate: float,
        weight_decay: float,
        schedule: str,
        plateau_factor: float,
        plateau_patience: int,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["network"])
        self.network = network
        self.register_buffer("class_weight", torch.tensor(class_weight), persistent=False)
        self.mean_loss = EpochMean()
        self.val_total: Tensor | float = 0.0  # summed loss and number of images
        self.plateau: ReduceLROnPlateau | None = None
        self.plateau_state: dict[str, Any] | None = None

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        logits = self.network(self._augmented(gray_levels(batch["image"])))
        loss = classification_loss(logits, batch["target"], self.hparams["task"], self.class_weight)  # type: ignore[arg-type]
        self.mean_loss.add(loss, len(logits))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.mean_loss.log(self, "train/loss")

    # fidelity: classifier-validation-view
    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        logits = self.network(gray_levels(batch["image"])).float()
        loss = classification_loss(logits, batch["target"], self.hparams["task"], torch.ones_like(logits[0]))
        num = torch.tensor(len(logits), dtype=loss.dtype, device=loss.device)
        self.val_total = self.val_total + torch.stack([loss * num, num])

    def on_validation_epoch_end(self) -> None:
        # Pooled over ranks, whose shards differ in size.
        seen = torch.as_tensor(self.val_total, device=self.device).expand(2)
        total, num = self.trainer.strategy.reduce(seen.clone(), reduce_op="sum")
        self.log("val/loss", total / num, sync_dist=True)
        self.val_total = 0.0
        if self.plateau is not None:
            self.plateau.step(float(total / num))

    # Lightning steps a plateau after it has written the epoch's checkpoint and leaves that step out when it goes on
    # from there: a resumed training would keep the higher rate. So it is stepped here, with a state of its own.
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.plateau is not None:
            checkpoint["plateau"] = self.plateau.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.plateau_state = checkpoint.get("plateau")

    def configure_optimizers(self) -> Any:
        options = self.hparams
        kind = torch.optim.Adam if options["optimizer"] == "adam" else torch.optim.AdamW
        optimizer = kind(
            self.parameters(), lr=options["learning_rate"], weight_decay=options["weight_decay"], fused=True
        )
        if options["schedule"] == "plateau":
            self.plateau = ReduceLROnPlateau(
                optimizer, factor=options["plateau_factor"], patience=options["plateau_patience"]
            )
            if self.plateau_state is not None:
                self.plateau.load_state_dict(self.plateau_state)
        if options["schedule"] != "cosine":
            return optimizer
        total = max(1, int(self.trainer.estimated_stepping_batches))
        cosine = LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / total))))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}

    def _augmented(self, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c s t"]:
        if self.hparams["augmentation"] == "shift":
            return shifted(image, self.hparams["max_shift"])
        if self.hparams["augmentation"] == "crop_flip":
            return cropped_and_flipped(image, self.hparams["crop_size"])
        return image


def gray_levels(image: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """In [0, 1]."""
    return image.float().div_(255)
