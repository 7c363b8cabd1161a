"""Training of the small autoencoder: reconstruction and KL divergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.data.image_codec import unit_images
from fedsynth.models.autoencoder import autoencoder_losses, small_autoencoder
from fedsynth.seeding import derive_seed
from fedsynth.stages.training import EpochMean


class SmallAutoencoder(L.LightningModule):
    """Minimizes mean |x - x̂| + kl_weight · KL with Adam, the learning rate falling to zero along a cosine.

    Args:
        image_channels: Channels of an image.
        latent_channels: Channels of a latent.
        channels: Width of each level; each further level halves the image.
        blocks_per_level: Residual blocks of each level.
        kl_weight: Of the divergence.
        learning_rate: Peak of Adam.
        noise_seed: Of the posterior draws.
    """

    def __init__(
        self,
        *,
        image_channels: int,
        latent_channels: int,
        channels: Sequence[int],
        blocks_per_level: int,
        kl_weight: float,
        learning_rate: float,
        noise_seed: int,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = small_autoencoder(image_channels, latent_channels, channels, blocks_per_level)
        self.stream: torch.Generator | None = None
        self.mean_loss = EpochMean()

    def on_train_epoch_start(self) -> None:
        # By epoch and rank: going on at an epoch's start, on any number of ranks, needs no stored state.
        epoch, rank = self.trainer.current_epoch, self.trainer.global_rank
        seed = derive_seed(self.hparams["noise_seed"], "epoch", epoch, rank)
        self.stream = torch.Generator(self.device).manual_seed(seed)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        assert self.stream is not None
        image = unit_images(batch["image"])
        losses = autoencoder_losses(self.network, image, self.stream)
        loss = losses.reconstruction + self.hparams["kl_weight"] * losses.divergence
        self.mean_loss.add(loss, len(image))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.mean_loss.log(self, "train/loss")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.hparams["learning_rate"], fused=True)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
