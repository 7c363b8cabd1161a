"""Sample candidates shard by shard; what a killed run finished is not made again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.selection.groups import label_groups, stratified_rows
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.synthesize_images.networks import open_sampler
from fedsynth.stages.synthesize_images.pieces import finished, keep, make_pieces
from fedsynth.stages.synthesize_images.progress import ImageProgress
from fedsynth.stages.synthesize_images.spec import SynthesizeImagesSettings


def run(settings: SynthesizeImagesSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``candidates-00000.safetensors`` …: latents [s, b, c, h, w] in half precision, and the rows they are for."""
    images = read_image_set(inputs["images"])
    rows = source_rows(settings, images, context.name)
    sampler = open_sampler(
        dataclasses.asdict(settings),
        inputs,
        images,
        seed=settings.seed,
        batch_size=settings.batch_size,
        context=context,
        may_need_guide=settings.guidance_weight != 1,
        key=f"stages.{context.name}.batch_size",
    )
    shards = rows.split(settings.shard_size)
    names = [shard_name(number) for number in range(len(shards))]
    number = settings.num_candidates
    own = [
        len(shard) * number
        for index, (shard, done) in enumerate(zip(shards, finished(context, names), strict=True))
        if not done and index % context.world_size == context.rank
    ]
    with ImageProgress(context.name, sum(own)) as progress:

        def make(index: int) -> dict[str, Tensor]:
            latent = sampler.draw(shards[index], number, settings.guidance_weight, progress.within)
            progress.finish(len(shards[index]) * number)
            return {"latent": latent, "source": shards[index]}

        paths = make_pieces(context, names, make)
    if context.rank != 0:
        return Outcome()
    for path in paths:
        keep(path, context.output)
    return Outcome(
        notes={
            "num_sources": len(rows),
            "sources": images.rows(rows).counts(),
            "num_candidates": number,
            "num_shards": len(shards),
            "guidance": {"kind": settings.guidance, "weight": settings.guidance_weight},
            "batch_size": sampler.batch_size,
        }
    )


def shard_name(number: int) -> str:
    """The file of a shard; they sort in order."""
    return f"candidates-{number:05}.safetensors"


def source_rows(settings: SynthesizeImagesSettings, images: ImageSet, name: str) -> Int64[Tensor, " r"]:
    """The training images that get candidates: all, or a random subset with the classes in proportion.

    Raises:
        ConfigError: If there are fewer training images than are asked for.
    """
    if settings.num_sources is None:
        return torch.arange(len(images))
    if settings.num_sources > len(images):
        raise ConfigError(
            f"stages.{name}.num_sources must be ≤ {len(images)}, the training images there are, or null for all of "
            f"them; got {settings.num_sources}. Set image_sampler.num_sources.",
            key=f"stages.{name}.num_sources",
        )
    group, _ = label_groups(images.targets(), images.classes)
    return stratified_rows(
        group, settings.num_sources, generator(settings.seed, "synthesize_images", "sources")
    )
