"""Sample the averaged denoiser: balanced classes, deterministic DDIM, classifier-free guidance."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedsynth.diffusion.ddim import sample_ddim
from fedsynth.diffusion.precondition import PreconditionedDenoiser
from fedsynth.diffusion.standardize import LatentScaler
from fedsynth.models.denoiser import LatentDenoiser
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.latent_ddpm.module import noise_schedule
from fedsynth.stages.synthesize.spec import SynthesizeSettings


def run(settings: SynthesizeSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``num_per_class`` synthetic latents of each class."""
    artifact = inputs["denoiser"]
    trained, stored = artifact.manifest["settings"], artifact.load("denoiser.safetensors")
    scaler = LatentScaler(stored.pop("scaler.mean"), stored.pop("scaler.std"))
    dim, num_classes = len(scaler.mean), int(artifact.manifest["notes"]["num_classes"])
    schedule = noise_schedule(trained["beta_schedule"], trained["num_timesteps"])
    network = LatentDenoiser(
        dim, trained["width"], trained["num_blocks"], trained["time_embedding_dim"], num_classes
    )
    denoiser = PreconditionedDenoiser(network, schedule)
    denoiser.load_state_dict(stored)
    labels = torch.arange(num_classes).repeat_interleave(settings.num_per_class)
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
    latent = scaler.restore(standardized)
    context.save("samples.safetensors", {"latent": latent.float(), "label": labels})
    return Outcome(notes={"num_per_class": settings.num_per_class})
