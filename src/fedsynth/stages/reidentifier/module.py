"""Training of the identity network, with the held-out loss of its calibrated probability after every epoch."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.attacks.reidentification import fit_pair_logistic
from fedsynth.evaluation.ranking import auroc
from fedsynth.models.siamese import SiameseNetwork
from fedsynth.models.siamese_losses import allowed_negatives, hardest_negatives, infonce, siamese_bce
from fedsynth.seeding import derive_seed
from fedsynth.stages.reidentifier.augmentation import random_views
from fedsynth.stages.reidentifier.held_out import HeldOutPairs
from fedsynth.stages.training import EpochMean


class IdentityTraining(L.LightningModule):
    """Trains on pairs and, with ``platt``, fits the probability to the held-out pairs.

    Args:
        network: Trained in place.
        held_out: Pairs of validation patients.
        loss: ``siamese_bce`` or ``infonce_mix``.
        temperature: τ of InfoNCE.
        negatives: ``random``, ``matched`` or ``hard``.
        augmentation: Strength of the random views; 0 for none.
        calibration: ``none`` or ``platt``.
        learning_rate, weight_decay: Of AdamW.
        decay: ``constant`` or ``cosine``, per step down to 0.
        seed: Of the views.
    """

    def __init__(
        self,
        network: SiameseNetwork,
        held_out: HeldOutPairs,
        *,
        loss: str,
        temperature: float,
        negatives: str,
        augmentation: float,
        calibration: str,
        learning_rate: float,
        weight_decay: float,
        decay: str,
        seed: int,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["network", "held_out"])
        self.network, self.held_out = network, held_out
        self.stream: torch.Generator | None = None
        self.mean_loss = EpochMean()
        self.embeddings: list[Tensor] = []

    def on_train_epoch_start(self) -> None:
        # By epoch and rank: resuming at an epoch's start, on any number of ranks, needs no stored state.
        seed = derive_seed(
            self.hparams["seed"], "views", self.trainer.current_epoch, self.trainer.global_rank
        )
        self.stream = torch.Generator(self.device).manual_seed(seed)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        assert self.stream is not None
        # A contrastive batch is its own source of negatives; the drawn ones are for the paper's loss.
        columns = 2 if self.hparams["loss"] == "infonce_mix" else 3
        image = batch["image"][:, :columns]
        num = len(image)
        pixels = self.network.pixels(image.transpose(0, 1).flatten(0, 1))
        views = random_views(pixels, self.hparams["augmentation"], self.stream)
        embedding = self.network(views).unflatten(0, (columns, num))
        loss = self._infonce(embedding, batch) if columns == 2 else self._cross_entropy(embedding, batch)
        self.mean_loss.add(loss, num)
        return loss

    def _infonce(self, embedding: Float[Tensor, "2 n e"], batch: dict[str, Tensor]) -> Float[Tensor, ""]:
        return infonce(embedding[0], embedding[1], self._allowed(batch, 1), self.hparams["temperature"])

    def _cross_entropy(
        self, embedding: Float[Tensor, "3 n e"], batch: dict[str, Tensor]
    ) -> Float[Tensor, ""]:
        same = self.network.score(embedding[0], embedding[1])
        if self.hparams["negatives"] != "hard":
            has = batch["has_negative"]
            return siamese_bce(same, self.network.score(embedding[0][has], embedding[2][has]))
        # Of all images of the batch the one that looks most like the first, chosen without gradients.
        num = len(same)
        others = torch.cat([embedding[1], embedding[2]])
        allowed = torch.cat([self._allowed(batch, 1), self._allowed(batch, 2)], 1)
        first, second = embedding[0].repeat_interleave(len(others), 0), others.repeat(num, 1)
        return siamese_bce(same, hardest_negatives(self.network.score(first, second).view(num, -1), allowed))

    def _allowed(self, batch: dict[str, Tensor], column: int) -> Tensor:
        """Which images of a column may be negatives of the first images."""
        patient, content, match = (
            (batch[name][:, 0], batch[name][:, column]) for name in ("patient", "content", "match")
        )
        return allowed_negatives(patient, content, None if self.hparams["negatives"] == "random" else match)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.mean_loss.log(self, "train/loss")

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        self.embeddings.append(self.network(self.network.pixels(batch["image"])))

    def on_validation_epoch_end(self) -> None:
        embedding = torch.cat(self.embeddings)
        self.embeddings.clear()
        pair, same = self.held_out.pair.to(embedding.device), self.held_out.is_same
        # A debug run sees a part of the images only.
        seen = (pair < len(embedding)).all(1)
        score = self.network.score(embedding[pair[seen, 0]], embedding[pair[seen, 1]]).double().cpu()
        same = same[seen.cpu()]
        if same.unique().numel() < 2 or not bool(score.isfinite().all()):
            self.log("val/loss", torch.tensor(float("nan")), sync_dist=True)
            return
        self.log("val/loss", torch.tensor(self._fit(score, same)), sync_dist=True)
        self.log("val/auroc", torch.tensor(auroc(score, same)), sync_dist=True)

    def _fit(self, score: Float[Tensor, " pair"], same: Tensor) -> float:
        """Calibrate, if asked; the balanced cross-entropy of the probability on the held-out pairs, in nats."""
        if self.hparams["calibration"] == "platt":
            fitted = fit_pair_logistic(score, same)
            self.network.calibrate(fitted.scale, fitted.bias)
            return fitted.loss
        terms = torch.nn.functional.binary_cross_entropy_with_logits(score, same.double(), reduction="none")
        return float((terms[same == 1].mean() + terms[same == 0].mean()) / 2)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=self.hparams["learning_rate"],
            weight_decay=self.hparams["weight_decay"],
            fused=True,
        )
        if self.hparams["decay"] == "constant":
            return optimizer
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
