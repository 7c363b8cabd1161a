"""Sample the averaged denoiser: balanced classes, deterministic DDIM, classifier-free guidance."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsynth.diffusion.ddim import sample_ddim
from fedsynth.diffusion.precondition import PreconditionedDenoiser
from fedsynth.diffusion.standardize import LatentScaler
from fedsynth.models.denoiser import LatentDenoiser
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.latent_ddpm.module import noise_schedule
from fedsynth.stages.synthesize.selection import validation_auroc
from fedsynth.stages.synthesize.spec import SynthesizeSettings


def run(settings: SynthesizeSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``num_per_class`` synthetic latents of each class.

    Of the denoiser's final average; with the optional input ``validation``, of the snapshot whose samples train
    the classifier that ranks real validation latents best (the later one among equals).
    """
    artifact = inputs["denoiser"]
    stored = artifact.load("denoiser.safetensors")
    scaler = LatentScaler(
        stored.pop("scaler.mean"), stored.pop("scaler.std"), stored.pop("scaler.basis", None)
    )
    labels = torch.arange(int(artifact.manifest["notes"]["num_classes"])).repeat_interleave(
        settings.num_per_class
    )
    metrics: list[Metric] = []
    if "validation" in inputs:
        real = inputs["validation"].load("latents.safetensors")
        latent, metrics = _best(artifact, stored, scaler, labels, real, settings)
    else:
        latent = _samples(artifact, stored, scaler, labels, settings)
    context.save("samples.safetensors", {"latent": latent, "label": labels})
    return Outcome(metrics=metrics, notes={"num_per_class": settings.num_per_class})


def _best(
    artifact: Artifact,
    final: Mapping[str, Tensor],
    scaler: LatentScaler,
    labels: Tensor,
    real: Mapping[str, Tensor],
    settings: SynthesizeSettings,
) -> tuple[Tensor, list[Metric]]:
    """Samples of the selected snapshot, and what each one reached."""
    snapshots: dict[int, dict[str, Tensor]] = {}  # fidelity: checkpoint-selection
    for name, tensor in artifact.load("snapshots.safetensors").items():
        done, _, key = name.partition("/")
        snapshots.setdefault(int(done), {})[key] = tensor
    snapshots[int(artifact.manifest["notes"]["epochs"])] = dict(final)
    metrics, chosen, best, best_epoch = [], torch.empty(0), -1.0, 0
    for epoch in sorted(snapshots):
        latent = _samples(artifact, snapshots[epoch], scaler, labels, settings)
        auroc = validation_auroc(
            latent, labels, validation=real["val.latent"], validation_labels=real["val.label"]
        )
        metrics.append(Metric(f"epoch_{epoch}", "val/auroc", auroc, settings.seed))
        if auroc >= best:
            chosen, best, best_epoch = latent, auroc, epoch
    metrics.append(Metric("selected", "epoch", float(best_epoch), settings.seed))
    return chosen, metrics


def _samples(
    artifact: Artifact,
    weights: Mapping[str, Tensor],
    scaler: LatentScaler,
    labels: Tensor,
    settings: SynthesizeSettings,
) -> Tensor:
    """Latents in the units of the mixture, from the same noise whichever weights are given."""
    trained = artifact.manifest["settings"]
    dim = len(scaler.mean)
    schedule = noise_schedule(trained["beta_schedule"], trained["num_timesteps"])
    network = LatentDenoiser(
        dim, trained["width"], trained["num_blocks"], trained["time_embedding_dim"], int(labels.max()) + 1
    )
    denoiser = PreconditionedDenoiser(network, schedule)
    denoiser.load_state_dict(dict(weights))
    standardized = sample_ddim(
        denoiser.eval(),
        labels,
        schedule=schedule,
        num_steps=settings.num_steps,
        guidance_scale=settings.guidance_scale,
        dim=dim,
        generator=generator(settings.seed, "synthesize"),
        batch_size=settings.batch_size,
        spacing=settings.timestep_spacing,  # type: ignore[arg-type]
    )
    return scaler.restore(standardized).float()
