"""Pick the rows that candidates exist for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Int64
from safetensors import safe_open
from torch import Tensor

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.image_set import IMAGES_FILE, read_image_set
from fedsynth.stages.source_images.spec import SourceImagesSettings


def run(settings: SourceImagesSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """The sources as a training set, in the order of the candidates, with patients and rows."""
    rows = candidate_sources(inputs["candidates"])
    real = replace(read_image_set(inputs["images"]).rows(rows), source=rows)
    context.save(IMAGES_FILE, real.to_tensors("train"))
    return Outcome(notes={**real.describe(), "counts": {"train": real.counts()}})


def candidate_sources(candidates: Artifact) -> Int64[Tensor, " r"]:
    """Rows of the training images that candidates were made of; the latents themselves are not read."""
    rows = []
    for name in sorted(candidates.manifest["files"]):
        if name.startswith("candidates-"):
            with safe_open(candidates.file(name), framework="pt") as shard:
                rows.append(shard.get_tensor("source"))
    return torch.cat(rows)
