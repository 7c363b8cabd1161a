"""EDM training of the image denoiser, its averages over training, and an early snapshot of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.diffusion.edm import EDMDenoiser
from fedsynth.diffusion.edm_loss import (
    NoiseDraws,
    NoiseLevelLaw,
    draw_noise,
    edm_loss_of_draws,
    weighted_errors,
)
from fedsynth.diffusion.power_ema import PowerAverages
from fedsynth.diffusion.training_schedule import inverse_sqrt_rate
from fedsynth.models.image_denoiser import ImageDenoiser
from fedsynth.models.magnitude_preserving import NoiseUncertainty
from fedsynth.seeding import derive_seed
from fedsynth.stages.diadm.spec import RAW

log = logging.getLogger(__name__)


class DiADM(L.LightningModule):
    """Trains D(x; σ, c) on standardized latents; what samples are its averages (EDM, EDM2, DiADM).

    Args:
        network: Arguments of ``ImageDenoiser``.
        sigma_data: Standard deviation of the latents.
        uncertainty: Whether EDM2's u(σ) weighs the noise levels.
        noise_mean: Of ln σ.
        noise_std: Of ln σ.
        condition_dropout: Share of conditions replaced by zeros.
        ema_widths: σ_rel of each average.
        ema_width: The average that is validated; 0 for the raw weights.
        earlier_fraction: Share of the training after which the snapshot is taken.
        learning_rate: Reference rate of Adam.
        adam_betas: Of Adam.
        ramp_images: Images until which the rate rises.
        decay_images: Images from which it falls as 1/√; 0 for never.
        batch_size: Images of a step of all processes together.
        num_steps: Steps of the whole training.
        noise_seed: Of noise levels, noise and dropout.
    """

    def __init__(
        self,
        *,
        network: Mapping[str, Any],
        sigma_data: float,
        uncertainty: bool,
        noise_mean: float,
        noise_std: float,
        condition_dropout: float,
        ema_widths: Sequence[float],
        ema_width: float,
        earlier_fraction: float,
        learning_rate: float,
        adam_betas: Sequence[float],
        ramp_images: float,
        decay_images: float,
        batch_size: int,
        num_steps: int,
        noise_seed: int,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.law = NoiseLevelLaw(noise_mean, noise_std)
        denoiser = EDMDenoiser(ImageDenoiser(**network), sigma_data)
        # 10 to 25 % faster on CPUs; PyTorch keeps the order through all layers.
        self.denoiser = denoiser.to(memory_format=torch.channels_last)
        self.uncertainty = NoiseUncertainty() if uncertainty else None
        # Without gradients: DDP waits for those of every parameter that may have one.
        self.averages = PowerAverages(self.denoiser, tuple(ema_widths))
        self.stream: torch.Generator | None = None
        self._draws: NoiseDraws | None = None
        self._first_row = 0
        self.earlier: dict[str, Tensor] = {}
        self.earlier_step = 0
        self._averaged_step = 0
        self._loss: Tensor | float = 0.0
        self._num_rows = 0
        self._val_total: Tensor | float = 0.0

    def start_from(self, state: Mapping[str, Tensor]) -> None:
        """Begin with these weights of the denoiser, in the averages too."""
        self.denoiser.load_state_dict(dict(state))
        self.averages = PowerAverages(self.denoiser, self.averages.widths)

    def on_train_start(self) -> None:
        self._averaged_step = self.trainer.global_step
        # A run cut short by fast_dev_run or limit_train_batches has fewer steps than are planned.
        possible = float(self.trainer.estimated_stepping_batches)
        total = int(min(self.hparams["num_steps"], possible if math.isfinite(possible) else math.inf))
        self.earlier_step = max(1, round(total * self.hparams["earlier_fraction"]))

    def on_train_epoch_start(self) -> None:
        # By epoch and rank: going on at an epoch's start, on any number of ranks, needs no stored state.
        epoch, rank = self.trainer.current_epoch, self.trainer.global_rank
        seed = derive_seed(self.hparams["noise_seed"], "epoch", epoch, rank)
        self.stream = torch.Generator(self.device).manual_seed(seed)
        self._draws = None

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Float[Tensor, ""]:
        latent = batch["latent"].contiguous(memory_format=torch.channels_last)
        loss = edm_loss_of_draws(
            self.denoiser,
            latent,
            batch.get("condition"),
            draws=self._draws_of(latent),
            sigma_data=self.denoiser.sigma_data,
            uncertainty=self.uncertainty,
        )
        self._loss = self._loss + loss.detach() * len(latent)
        self._num_rows += len(latent)
        # Lightning averages over accumulated batches; each must count by its rows.
        accumulated = self.trainer.accumulate_grad_batches * self.trainer.world_size
        return loss * (len(latent) * accumulated / self.hparams["batch_size"])

    def _draws_of(self, latent: Tensor) -> NoiseDraws:
        """The next rows of the draws of the step: drawn for all its rows at once, they do not depend on the part of it
        that fits into memory. Dropout inside the network does.
        """
        assert self.stream is not None
        share = self.hparams["batch_size"] // self.trainer.world_size
        if self._draws is None or self._first_row == share:
            self._first_row = 0
            self._draws = draw_noise(
                (share, *latent.shape[1:]),
                law=self.law,
                generator=self.stream,
                condition_dropout=self.hparams["condition_dropout"],
                dtype=latent.dtype,
            )
        first, self._first_row = self._first_row, self._first_row + len(latent)
        return self._draws.rows(first, len(latent))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        step = self.trainer.global_step
        if step != self._averaged_step:
            self._averaged_step = step
            self.averages.update(self.denoiser)
            if step == self.earlier_step:
                self.earlier = self.states()
        if self.trainer.is_last_batch:
            # Not `log` in each step: it costs small networks a quarter of their time.
            mean = self._loss / max(1, self._num_rows)
            self.log("train/loss", mean, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)
            self._loss, self._num_rows = 0.0, 0

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        errors = weighted_errors(
            self.sampling_weights(),
            batch["latent"].contiguous(memory_format=torch.channels_last),
            batch.get("condition"),
            batch["sigma"],
            batch["noise"],
            self.denoiser.sigma_data,
        )
        self._val_total = self._val_total + torch.stack([errors.sum(), torch.ones_like(errors).sum()])

    def on_validation_epoch_end(self) -> None:
        # Pooled over ranks, never averaged: ranks hold unequal numbers of records.
        seen = torch.as_tensor(self._val_total, device=self.device).expand(2)  # 0.0 on a rank without records
        total, num = self.trainer.strategy.reduce(seen.clone(), reduce_op="sum")
        self.log("val/loss", total / num, sync_dist=True)
        self._val_total = 0.0

    def sampling_weights(self) -> nn.Module:
        """The denoiser that samples: the average of ``ema_width``, or the trained weights."""
        width = self.hparams["ema_width"]
        return self.denoiser if width == RAW else self.averages.at(width)

    def states(self) -> dict[str, Tensor]:
        """Copies of all averages and of the raw weights, on the CPU; names begin with the width, 0 for raw."""
        modules = {RAW: self.denoiser, **{width: self.averages.at(width) for width in self.averages.widths}}
        return {
            f"{width:g}/{name}": tensor.detach().cpu().clone()
            for width, module in modules.items()
            for name, tensor in module.state_dict().items()
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["earlier"] = self.earlier

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.earlier = checkpoint["earlier"]

    def rate_factor(self, step: int) -> float:
        """Learning rate of a step (0, 1, …) relative to the reference."""
        rate = inverse_sqrt_rate(
            step * self.hparams["batch_size"],
            reference=self.hparams["learning_rate"],
            decay=self.hparams["decay_images"],
            ramp=self.hparams["ramp_images"],
        )
        return rate / self.hparams["learning_rate"]

    def configure_optimizers(self) -> Any:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        betas = tuple(self.hparams["adam_betas"])
        optimizer = torch.optim.Adam(trained, lr=self.hparams["learning_rate"], betas=betas, fused=True)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate_factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
