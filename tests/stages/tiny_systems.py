"""Scored systems as ``fusion_encoder`` and ``tstr_mlp`` leave them, made by hand; settings of what reads them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_stages import OVERRIDES, TRAINER, found
from torch import Tensor

from fedsynth.composition import compose_config, resolved
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.stage import Metric, Outcome
from fedsynth.run_sources import planner_sources

KINDS = ("contrast", "temperature_scaling", "encoder_attack", "failure_analysis")
CONTRAST = ("stages.contrast.inputs.candidate=tstr_diffusion", "stages.contrast.inputs.baseline=tstr_real")


@cache
def _config() -> dict[str, Any]:
    added = [f"+stage@stages.{kind}={kind}" for kind in KINDS]
    return resolved(compose_config(["experiment=feddp_pald", *OVERRIDES, *added, *CONTRAST]))


def planned(path: str = "", value: Any = None) -> dict[str, Any]:
    """Settings of the four analysis stages added to ``experiment=feddp_pald``, one entry of ``stages`` replaced."""
    stages = copy.deepcopy(_config()["stages"])
    if path:
        *parents, last = path.split(".")
        node = stages
        for parent in parents:
            node = node[parent]
        node[last] = value
    return {one.name: one.settings for one in plan_stages(stages, TRAINER, planner_sources({}))}


def analysis_settings(kind: str, **changes: Any) -> Any:
    return dataclasses.replace(planned()[kind], **changes)


def labels(num: int) -> Tensor:
    """Classes alternate."""
    return torch.arange(num) % 2


def noisy_logits(label: Tensor, seed: int, *, scale: float = 1.0) -> Tensor:
    """Logits that are right in most cases; times ``scale``."""
    stream = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(label), generator=stream, dtype=torch.float64)
    return scale * (2.0 * (2 * label - 1) + 1.5 * noise)


def _system(
    folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], metrics: Sequence[Metric]
) -> Artifact:
    folder = folder / "output"
    folder.mkdir(parents=True)
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "scores.safetensors"
    )
    return found(folder, dict(settings), Outcome(metrics=list(metrics)))


def encoder_system(
    folder: Path,
    logits: Mapping[str, Mapping[str, Tensor]],
    label: Mapping[str, Tensor],
    *,
    threshold: float = 0.5,
    seed: int = 42,
) -> Artifact:
    """Arm → split → logits, as a ``fusion_encoder`` stores them."""
    tensors = {f"{split}.label": value for split, value in label.items()}
    for arm, by_split in logits.items():
        for split, logit in by_split.items():
            tensors[f"{arm}/{split}.logit"] = logit
            tensors[f"{arm}/{split}.probability"] = logit.sigmoid()
    metrics = [Metric(arm, "test/threshold", threshold, seed) for arm in logits]
    return _system(folder, tensors, {"seed": seed}, metrics)


def tstr_system(
    folder: Path,
    logits: Mapping[str, Tensor],
    label: Mapping[str, Tensor],
    *,
    threshold: float = 0.5,
    seeds: Sequence[int] = (1, 2),
) -> Artifact:
    """Split → logits [seed, n], as a ``tstr_mlp`` stores them."""
    tensors = {f"{split}.label": value for split, value in label.items()}
    for split, logit in logits.items():
        tensors |= {f"{split}.logit": logit, f"{split}.probability": logit.sigmoid()}
    metrics = [Metric("arm", "test/threshold", threshold, seed) for seed in seeds]
    return _system(folder, tensors, {"classifier_seeds": list(seeds), "arm": "arm"}, metrics)


def pair_of_seeds(label: Mapping[str, Tensor], first: int, **options: Any) -> dict[str, Tensor]:
    """Logits [2, n] of every split."""
    return {
        split: torch.stack([noisy_logits(value, first + row, **options) for row in (0, 1)])
        for split, value in label.items()
    }
