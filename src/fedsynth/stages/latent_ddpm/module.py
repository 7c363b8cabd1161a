"""Noise-prediction training of the latent denoiser (Eqs. 26–27)."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.diffusion.ddpm import noise_prediction_loss
from fedsynth.diffusion.ema import exponential_moving_average
from fedsynth.diffusion.precondition import PreconditionedDenoiser
from fedsynth.diffusion.schedule import NoiseSchedule, cosine_schedule, linear_schedule
from fedsynth.models.denoiser import LatentDenoiser
from fedsynth.seeding import derive_seed
from fedsynth.stages.training import EpochMean

SCHEDULES = {"linear": linear_schedule, "cosine": cosine_schedule}


def noise_schedule(name: str, num_timesteps: int) -> NoiseSchedule:
    """The schedule a settings file names."""
    if name == "linear":
        # Fewer timesteps need proportionally larger betas to end without signal.
        scale = 1000 / num_timesteps
        return linear_schedule(num_timesteps, min(1e-4 * scale, 0.5), min(0.02 * scale, 0.999))
    return cosine_schedule(num_timesteps)


def snapshot_epochs(max_epochs: int, num_snapshots: int) -> tuple[int, ...]:
    """Epochs done when a snapshot is taken: i · max_epochs / num_snapshots, without the last, which is the end."""
    epochs = {-(-part * max_epochs // num_snapshots) for part in range(1, num_snapshots)}
    return tuple(sorted(epochs - {max_epochs}))


class LatentDDPM(L.LightningModule):
    """Trains the denoiser on standardized latents, and keeps the moving average of it that samples.

    Args:
        dim: Length of a latent.
        width: Hidden features.
        num_blocks: Residual blocks.
        time_embedding_dim: Length of the time embedding.
        num_classes: Classes.
        beta_schedule: ``linear`` or ``cosine``.
        num_timesteps: T.
        label_dropout: p_uncond.
        ema_decay: Of the average.
        learning_rate: Peak of AdamW, falling to zero along a cosine.
        noise_seed: Of timesteps, noise and label dropout.
        num_snapshots: Averages kept: at the end of each of so many equal parts of the training. The last is
            ``average`` itself; the others are in ``snapshots``, by the number of epochs done.
    """

    def __init__(
        self,
        *,
        dim: int,
        width: int,
        num_blocks: int,
        time_embedding_dim: int,
        num_classes: int,
        beta_schedule: str,
        num_timesteps: int,
        label_dropout: float,
        ema_decay: float,
        learning_rate: float,
        noise_seed: int,
        num_snapshots: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.schedule = noise_schedule(beta_schedule, num_timesteps)
        network = LatentDenoiser(dim, width, num_blocks, time_embedding_dim, num_classes)
        self.network = PreconditionedDenoiser(network, self.schedule)
        # Without gradients: DDP waits for those of every parameter that may have one.
        self.average = exponential_moving_average(self.network, ema_decay).requires_grad_(False)
        self.stream: torch.Generator | None = None
        self.mean_loss = EpochMean()
        self.snapshots: dict[int, dict[str, Tensor]] = {}

    def on_train_epoch_start(self) -> None:
        # By epoch and rank: resuming at an epoch's start, on any number of ranks, needs no stored state.
        epoch, rank = self.trainer.current_epoch, self.trainer.global_rank
        seed = derive_seed(self.hparams["noise_seed"], "epoch", epoch, rank)
        self.stream = torch.Generator(self.device).manual_seed(seed)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        assert self.stream is not None
        dropout = self.hparams["label_dropout"]
        loss = noise_prediction_loss(
            self.network, batch["latent"], batch["label"], self.schedule, dropout, self.stream
        )
        self.mean_loss.add(loss, len(batch["label"]))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.average.update_parameters(self.network)
        self.mean_loss.log(self, "train/loss")

    def on_train_epoch_end(self) -> None:
        done = self.trainer.current_epoch + 1
        if done in snapshot_epochs(self.trainer.max_epochs or done, self.hparams["num_snapshots"]):
            state = self.average.module.state_dict()
            self.snapshots[done] = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["snapshots"] = self.snapshots

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.snapshots = checkpoint["snapshots"]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=self.hparams["learning_rate"], fused=True)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
