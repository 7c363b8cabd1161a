"""Train the image denoiser; keep its averages, its raw weights, and both of an early snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsynth.diffusion.training_schedule import iterations_of
from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed, generator
from fedsynth.stages.diadm.datamodule import LatentImagesData
from fedsynth.stages.diadm.initial_weights import initial_state
from fedsynth.stages.diadm.module import DiADM
from fedsynth.stages.diadm.spec import DiADMSettings
from fedsynth.stages.diadm.trained import DENOISER_FILE, EARLIER_FILE, NETWORK, conditions
from fedsynth.stages.image_codec.stored import LATENTS_FILE
from fedsynth.stages.image_set import read_image_set
from fedsynth.stages.out_of_memory import is_out_of_memory, with_smaller_batches
from fedsynth.stages.training import EpochStream, History, fit, seed_everything

log = logging.getLogger(__name__)


def run(settings: DiADMSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Weights for sampling and for guidance, and the curve of the training."""
    share, micro_batch_size = _batch_shares(settings, context)
    train, val = _tensors(settings, inputs, "train"), _validation(settings, inputs)
    sigma_data = float(inputs["codec"].manifest["notes"]["sigma_data"])
    network = _network_arguments(settings, train)
    num_steps = iterations_of(settings.kimg, settings.batch_size)

    def train_once(micro: int) -> tuple[DiADM, History]:
        return _train(settings, context, (train, val), network, sigma_data, num_steps, micro)

    key = f"stages.{context.name}.batch_size"
    if context.world_size > 1:
        module, history = _all_ranks_or_none(train_once, micro_batch_size, context)
    else:
        (module, history), micro_batch_size = with_smaller_batches(train_once, micro_batch_size, key)
    if context.rank != 0:
        return Outcome()
    context.save(DENOISER_FILE, module.states())
    context.save(EARLIER_FILE, module.earlier)
    history.write(context.output)
    notes = {
        "condition": settings.condition,
        "condition_dim": network["condition_dim"],
        "latent_shape": list(train["latent"].shape[1:]),
        "sigma_data": sigma_data,
        "network": network,
        "parameters": sum(parameter.numel() for parameter in module.denoiser.parameters()),
        "iterations": num_steps,
        "earlier_iteration": module.earlier_step,
        "micro_batch_size": micro_batch_size,
        "accumulated_batches": -(-share // micro_batch_size),
    }
    last = history.rows[-1] if history.rows else {}
    metrics = [
        Metric("diadm", name, last[name], settings.seed)
        for name in ("train/loss", "val/loss")
        if name in last
    ]
    return Outcome(metrics=metrics, notes=notes)


def _batch_shares(settings: DiADMSettings, context: StageContext) -> tuple[int, int]:
    """Images of a step of this process, and of one forward pass."""
    accumulated = context.trainer.get("accumulate_grad_batches") or 1
    parts = context.world_size * accumulated
    if settings.batch_size % parts:
        key = f"stages.{context.name}.batch_size"
        raise ConfigError(
            f"{key} must be a multiple of processes × accumulate_grad_batches = {context.world_size} × {accumulated}, "
            f"got {settings.batch_size}. Change image_network.batch_size or image_network.accumulate_grad_batches.",
            key=key,
        )
    return settings.batch_size // context.world_size, settings.batch_size // parts


def _tensors(settings: DiADMSettings, inputs: Mapping[str, Artifact], split: str) -> dict[str, Tensor]:
    """Latents and conditions of a split, row by row of the same image."""
    images = read_image_set(inputs["images"], split)
    latent = inputs["codec"].load(LATENTS_FILE)[f"{split}.latent"]
    if len(latent) != len(images):
        raise DataError(
            f"stages.{inputs['codec'].stage} holds {len(latent)} {split} latents but stages.{inputs['images'].stage} "
            f"{len(images)} {split} images; they must be made of the same images."
        )
    features = (
        inputs["features"].load("features.safetensors")[f"{split}.feature"] if "features" in inputs else None
    )
    condition = conditions({"condition": settings.condition}, images, features)
    return {"latent": latent} | ({} if condition is None else {"condition": condition})


def _validation(settings: DiADMSettings, inputs: Mapping[str, Artifact]) -> dict[str, Tensor]:
    """Some validation latents with fixed noise, the noise levels one after the other, so that epochs compare."""
    tensors = _tensors(settings, inputs, "val")
    stream = generator(settings.seed, "diadm", "validation")
    order = torch.randperm(len(tensors["latent"]), generator=stream)[: settings.num_validation_images]
    tensors = {name: tensor[order] for name, tensor in tensors.items()}
    sigma = torch.tensor(list(settings.validation_sigmas) or [1.0])
    tensors["sigma"] = sigma[torch.arange(len(order)) % len(sigma)]
    tensors["noise"] = torch.randn(tensors["latent"].shape, generator=stream)
    return tensors


def _network_arguments(settings: DiADMSettings, train: Mapping[str, Tensor]) -> dict[str, Any]:
    condition = train.get("condition")
    sizes = {name: getattr(settings, name) for name in NETWORK}
    arguments = {name: list(value) if isinstance(value, list) else value for name, value in sizes.items()}
    condition_dim = 0 if condition is None else condition.shape[1]
    arguments |= {"latent_channels": train["latent"].shape[1], "condition_dim": condition_dim}
    divisor = 2 ** (len(settings.multipliers) - 1)
    height, width = train["latent"].shape[2:]
    if height % divisor or width % divisor:
        raise ConfigError(
            f"multipliers={list(settings.multipliers)} halve latents {len(settings.multipliers) - 1} times, but theirs "
            f"sides are {height} x {width}. Use fewer (image_network.multipliers), or another codec or image size.",
            key="image_network.multipliers",
        )
    return arguments


def _train(
    settings: DiADMSettings,
    context: StageContext,
    tensors: tuple[dict[str, Tensor], dict[str, Tensor]],
    network: dict[str, Any],
    sigma_data: float,
    num_steps: int,
    micro_batch_size: int,
) -> tuple[DiADM, History]:
    seed = derive_seed(settings.seed, "diadm")
    seed_everything(seed)
    module = DiADM(
        network=network,
        sigma_data=sigma_data,
        uncertainty=settings.uncertainty,
        noise_mean=settings.noise_mean,
        noise_std=settings.noise_std,
        condition_dropout=settings.condition_dropout,
        ema_widths=list(settings.ema_widths),
        ema_width=settings.ema_width,
        earlier_fraction=settings.earlier_fraction,
        learning_rate=settings.learning_rate,
        adam_betas=list(settings.adam_betas),
        ramp_images=1000 * settings.ramp_kimg,
        decay_images=1000 * settings.decay_kimg,
        batch_size=settings.batch_size,
        num_steps=num_steps,
        noise_seed=derive_seed(settings.seed, "diadm", "noise"),
    )
    if settings.init_weights is not None:
        module.start_from(
            initial_state(settings.init_weights, module.denoiser, settings.ema_width, context.name)
        )
    data = LatentImagesData(
        *tensors,
        batch_size=settings.batch_size,
        micro_batch_size=micro_batch_size,
        num_steps=num_steps,
        steps_per_epoch=settings.steps_per_epoch,
        seed=seed,
        rank=context.rank,
        world_size=context.world_size,
    )
    share = settings.batch_size // context.world_size
    arguments = {
        "max_epochs": -(-num_steps // settings.steps_per_epoch),
        "accumulate_grad_batches": -(-share // micro_batch_size),
        # The last epoch may be shorter; its loader must be asked for its length.
        "reload_dataloaders_every_n_epochs": int(num_steps % settings.steps_per_epoch > 0),
    }
    history = fit(
        module,
        data,
        context,
        network=module.denoiser,
        trainer_arguments=arguments,
        callbacks=[EpochStream(seed)],
    )
    return module, history


def _all_ranks_or_none(
    train_once: Any, micro_batch_size: int, context: StageContext
) -> tuple[DiADM, History]:
    """One rank alone cannot take smaller batches: the others wait for it with batches of the old size."""
    try:
        return train_once(micro_batch_size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        accumulated = 2 * (context.trainer.get("accumulate_grad_batches") or 1)
        key = f"stages.{context.name}.trainer.accumulate_grad_batches"
        raise ConfigError(
            f"Out of memory with {micro_batch_size} images a process: {error}. Accumulate more, smaller batches, "
            f"image_network.accumulate_grad_batches={accumulated}; the global batch stays the same.",
            key=key,
        ) from error
