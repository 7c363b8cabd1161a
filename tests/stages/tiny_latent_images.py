"""Tiny images, and the stages from them to a denoiser, with settings composed from the config files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tiny_stages import artifact, run_stage, stage_context
from torch import Tensor

from fedsynth.composition import compose_config
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import RESERVED
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import find_stage
from fedsynth.stages.image_set import ImageSet

SIDE, FEATURE_DIM = 8, 6
# 16 steps of 64 images, in epochs of 6: the last is short.
TINY_NETWORK = (
    "image_network.channels=8", "image_network.head_channels=8", "image_network.multipliers=[1]",
    "image_network.attention_levels=[0]", "image_network.batch_size=64", "image_network.kimg=1",
    "image_network.steps_per_epoch=6", "image_network.ramp_kimg=0.128",
    "image_network.num_validation_images=8", "image_network.condition_dropout=0",
)  # fmt: skip


def composed(kind: str, *words: str, network: str = "cpu", codec: str = "unshuffle") -> dict[str, Any]:
    """The stage's section of a config that brings only what it interpolates."""
    groups = [f"+image_network={network}", f"+codec={codec}", f"+stage@stages.{kind}={kind}"]
    config = compose_config([*groups, *words])
    section = OmegaConf.to_container(config.stages[kind], resolve=True)
    assert isinstance(section, dict)
    return section  # type: ignore[return-value]


def stage_settings(kind: str, *words: str, **groups: str) -> Any:
    """Checked settings of one stage."""
    values = {key: value for key, value in composed(kind, *words, **groups).items() if key not in RESERVED}
    return build_settings(find_stage(kind, kind).settings, values, f"stages.{kind}")


def image_set(num: int = 40, seed: int = 0, side: int = SIDE) -> ImageSet:
    """Squares whose place is the class, on a noisy ground."""
    stream = torch.Generator().manual_seed(seed)
    label = torch.arange(num) % 2
    image = torch.randint(0, 60, (num, 1, side, side), generator=stream)
    half = side // 2
    image[label == 0, :, :half, :half] += 150
    image[label == 1, :, half:, half:] += 150
    return ImageSet(image.to(torch.uint8), label, ("left", "right"), patient=torch.arange(num))


def images_artifact(folder: Path, num: int = 40, side: int = SIDE) -> Artifact:
    """What ``xray_images`` yields."""
    splits = {"train": image_set(num, 0, side), "val": image_set(12, 1, side), "test": image_set(12, 2, side)}
    tensors: dict[str, Tensor] = {}
    for split, images in splits.items():
        tensors |= images.to_tensors(split)
    return artifact(
        folder / "images" / "output", {"images.safetensors": tensors}, notes=splits["train"].describe()
    )


def features_artifact(folder: Path, num: int = 40) -> Artifact:
    """What ``pseudo_features`` yields: features of any length."""
    stream = torch.Generator().manual_seed(3)
    sizes = {"train": num, "val": 12, "test": 12}
    tensors = {
        f"{split}.feature": 5 * torch.rand(n, FEATURE_DIM, generator=stream) for split, n in sizes.items()
    }
    return artifact(folder / "features" / "output", {"features.safetensors": tensors})


def codec_artifact(
    folder: Path, images: Artifact, *words: str, codec: str = "unshuffle", **context: Any
) -> Artifact:
    """The stage ``image_codec``, run."""
    settings = stage_settings("image_codec", *words, codec=codec)
    return run_stage("image_codec", settings, {"images": images}, stage_context(folder / "codec", **context))
