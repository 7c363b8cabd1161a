"""Train the denoiser on mixture samples and keep its moving average."""

from __future__ import annotations

from collections.abc import Mapping

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.latent_ddpm.datamodule import MixtureSamplesData
from fedsynth.stages.latent_ddpm.module import LatentDDPM
from fedsynth.stages.latent_ddpm.spec import LatentDDPMSettings
from fedsynth.stages.training import batch_share, fit, seed_everything


def run(settings: LatentDDPMSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Weights of the averaged denoiser with the scaler that undoes the standardization, and earlier averages."""
    samples = inputs["mixture"].load("samples.safetensors")
    seed = derive_seed(settings.seed, "latent_ddpm")
    data = MixtureSamplesData(
        samples["latent"],
        samples["label"],
        whiten=settings.whiten,
        batch_size=batch_share(settings.batch_size, context),
        seed=seed,
        rank=context.rank,
        world_size=context.world_size,
    )
    seed_everything(seed)
    module = LatentDDPM(
        dim=samples["latent"].shape[1],
        width=settings.width,
        num_blocks=settings.num_blocks,
        time_embedding_dim=settings.time_embedding_dim,
        num_classes=int(samples["label"].max()) + 1,
        beta_schedule=settings.beta_schedule,
        num_timesteps=settings.num_timesteps,
        label_dropout=settings.label_dropout,
        ema_decay=settings.ema_decay,
        learning_rate=settings.learning_rate,
        noise_seed=derive_seed(settings.seed, "latent_ddpm", "noise"),
        num_snapshots=settings.num_snapshots,
    )
    history = fit(module, data, context, network=module.network, checkpoint_every=10)
    if context.rank != 0:
        return Outcome()
    state = dict(module.average.module.state_dict())
    state |= {f"scaler.{name}": tensor for name, tensor in data.scaler.to_tensors().items()}
    context.save("denoiser.safetensors", state)
    earlier = {
        f"{epoch}/{name}": tensor
        for epoch, weights in module.snapshots.items()
        for name, tensor in weights.items()
    }
    context.save("snapshots.safetensors", earlier)
    history.write(context.output)
    notes = {"num_classes": int(samples["label"].max()) + 1, "epochs": len(history.rows)}
    metrics = (
        [Metric("ddpm", "train/loss", history.rows[-1]["train/loss"], settings.seed)] if history.rows else []
    )
    return Outcome(metrics=metrics, notes=notes)
