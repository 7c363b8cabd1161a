"""The mixture a release describes, and the samples the server trains on."""

from __future__ import annotations

from collections.abc import Mapping

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.prototypes import MomentRelease, mixture_from_moments, mixture_from_release, sample_mixture
from fedsynth.seeding import generator
from fedsynth.stages.mix.spec import MixSettings
from fedsynth.stages.release.stored import load_release


def run(settings: MixSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """The global mixture, and ``num_samples`` draws of it in equal shares per class."""
    release = load_release(inputs["release"])
    if isinstance(release, MomentRelease):
        mixture = mixture_from_moments(release, floor=settings.variance_floor)
    else:
        mixture = mixture_from_release(
            release, floor=settings.variance_floor, subtract_noise=settings.subtract_noise
        )
    context.save("mixture.safetensors", mixture.to_tensors())
    num_classes = mixture.weights.shape[0]
    stream = generator(settings.seed, "mix", "samples")
    latent, label = sample_mixture(mixture, settings.num_samples // num_classes, stream)
    context.save("samples.safetensors", {"latent": latent.float(), "label": label})
    return Outcome(notes={"component_weights": mixture.weights.tolist()})
