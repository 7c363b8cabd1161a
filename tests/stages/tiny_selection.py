"""A selection of tiny candidates, and what it is checked against: every candidate and its probability."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_candidates import half_flagged, sampler_settings, selection_settings, tiny_inputs
from tiny_stages import run_stage, stage_context
from torch import Tensor

from fedsynth.data.image_codec import grey_levels
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_codec.stored import open_codec
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.reidentifier.trained import open_reidentifier


def selection_inputs(folder: Path) -> dict[str, Artifact]:
    """With an identity network that flags about half of the candidates."""
    made = tiny_inputs(folder)
    candidates = run_stage(
        "synthesize_images", sampler_settings(), made, stage_context(folder / "candidates")
    )
    reidentifier = half_flagged(folder / "half", made, candidates)
    return {**made, "candidates": candidates, "reidentifier": reidentifier}


def selected(folder: Path, inputs: dict[str, Artifact], **changes: Any) -> Artifact:
    return run_stage("select_images", selection_settings(**changes), inputs, stage_context(folder))


def told(artifact: Artifact) -> dict[str, Any]:
    """What clients and auditors are told: all notes."""
    notes = artifact.manifest["notes"]
    return {**notes, **notes["private"]}


def by_source(artifact: Artifact) -> ImageSet:
    """The set in the order of its sources, as no server gets it."""
    made = read_image_set(artifact)
    assert made.source is not None
    return made.rows(made.source.argsort(stable=True))


def pictures(inputs: dict[str, Artifact]) -> Tensor:
    """All candidates of the first round, [source, candidate, 1, h, w]."""
    codec, files = open_codec(inputs["codec"]), sorted(inputs["candidates"].manifest["files"])
    latent = torch.cat([inputs["candidates"].load(name)["latent"] for name in files]).float()
    return grey_levels(codec.decode(latent.flatten(0, 1))).unflatten(0, latent.shape[:2])


def probability(inputs: dict[str, Artifact], source: Tensor, image: Tensor) -> Tensor:
    """P of each image and the training image in its row of ``source``."""
    network = open_reidentifier(inputs["reidentifier"])
    real = network.embed(read_image_set(inputs["images"]).image)
    return network.probability(real[source], network.embed(image))
