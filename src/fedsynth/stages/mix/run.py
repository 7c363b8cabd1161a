"""Align every client's components, aggregate them, and draw the samples the server trains on."""

from __future__ import annotations

from collections.abc import Mapping

from safetensors.torch import save_file

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.prototypes import align_release, mixture_from_release, sample_mixture
from fedsynth.records import ShardRelease
from fedsynth.seeding import generator
from fedsynth.stages.mix.spec import MixSettings


def run(settings: MixSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """The global mixture, and ``num_samples`` draws of it in equal shares per class."""
    release = ShardRelease.from_tensors(inputs["release"].load("release.safetensors"))
    mixture = mixture_from_release(align_release(release), floor=settings.variance_floor)
    save_file(mixture.to_tensors(), context.output / "mixture.safetensors")
    num_classes = mixture.weights.shape[0]
    stream = generator(settings.seed, "mix", "samples")
    latent, label = sample_mixture(mixture, settings.num_samples // num_classes, stream)
    save_file({"latent": latent.float().contiguous(), "label": label}, context.output / "samples.safetensors")
    return Outcome(notes={"component_weights": mixture.weights.tolist()})
