"""A classifier that only stores its answers, for the stages that evaluate one; systems scored by hand."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from omegaconf import OmegaConf
from tiny_stages import OVERRIDES, TRAINER

from fedsynth.composition import CONFIG_DIR, compose_config, resolved
from fedsynth.pipeline.planner import plan_stages
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.run_sources import planner_sources
from fedsynth.stages.multimodal.trained import SplitOutputs

MODALITIES = ("audio", "text", "fused")
HISTORY = [
    {"epoch": 0, "val/uar": 0.5, "traffic/bytes_up": 100.0, "traffic/bytes_down": 50.0},
    {"epoch": 1, "val/uar": 0.81, "traffic/bytes_up": 140.0, "traffic/bytes_down": 70.0},
    {"epoch": 2, "val/uar": 0.7, "traffic/bytes_up": 140.0, "traffic/bytes_down": 70.0},
]


@dataclass
class StoredAnswers:
    """Stands for ``TrainedClassifier``."""

    answers: Mapping[str, SplitOutputs]
    prototypes: ClassPrototypes | None = None
    history: list[dict[str, float]] = field(default_factory=lambda: list(HISTORY))
    uploads: dict[int, ClassPrototypes] = field(default_factory=dict)
    simulated: bool = True

    def outputs(self, split: str) -> SplitOutputs:
        return self.answers[split]


def answers(
    *, models: int = 1, segments: int = 3, seed: int = 0, scale: float = 1.0
) -> dict[str, SplitOutputs]:
    """Of 16 training (two clients), 8 validation and 12 test participants, unequal numbers of segments each.

    Logits and embeddings lean to the right class; with ``segments=1`` every record stands alone.
    """
    stream, found = torch.Generator().manual_seed(seed), {}
    for split, first, number in (("train", 0, 16), ("val", 100, 8), ("test", 200, 12)):
        count = 1 + torch.arange(number) % segments
        group = (first + torch.arange(number)).repeat_interleave(count)
        group = group[torch.randperm(len(group), generator=stream)]
        label = group % 2
        shape = (models, len(group))
        logits = scale * torch.randn(*shape, 2, generator=stream)
        logits[:, :, 1] += scale * (2.0 * label - 1)
        embeddings = {
            name: torch.randn(*shape, 4, generator=stream) + (2.0 * label - 1).unsqueeze(1)
            for name in MODALITIES
        }
        client = group // 2 % 2 if split == "train" else torch.full_like(group, -1)
        found[split] = SplitOutputs(logits, embeddings, label, group, client)
    return found


def bank(*, modalities: tuple[str, ...] = MODALITIES, known: tuple[int, ...] = (0, 1)) -> ClassPrototypes:
    """Prototypes at -1 and +1 in every dimension; zeros of classes that are not known."""
    count = torch.tensor([8 if c in known else 0 for c in (0, 1)])
    mean = torch.tensor([[-1.0], [1.0]]).repeat(1, 4) * (count > 0).unsqueeze(1)
    return ClassPrototypes(dict.fromkeys(modalities, mean), dict.fromkeys(modalities, count))


@cache
def _stages() -> dict[str, Any]:
    """Clients, their encoder, two scores of it and the contrast of these."""
    added = (
        "+stage@stages.score=privacy_performance", "stages.score.inputs.encoder=fusion_encoder",
        "stages.score.arm=one", "+stage@stages.other=privacy_performance",
        "stages.other.inputs.encoder=fusion_encoder", "stages.other.arm=two",
        "+stage@stages.contrast=system_contrast", "stages.contrast.inputs.candidate=score",
        "stages.contrast.inputs.baseline=other", "stages.fusion_encoder.inputs.xray_encoder=null",
    )  # fmt: skip
    stages = resolved(compose_config(["experiment=feddp_pald", *OVERRIDES, *added]))["stages"]
    return {name: stages[name] for name in ("clients", "fusion_encoder", "score", "other", "contrast")}


def planned(strategy: str = "fedmpa", **entries: Any) -> dict[str, Any]:
    """Settings by stage, with entries such as ``score__inputs__encoder="clients"`` replaced or added.

    Args:
        strategy: Of the encoder; ``centralized`` pools the records.
        entries: Path below ``stages``, with ``__`` for a dot.
    """
    stages = copy.deepcopy(_stages())
    encoder = stages["fusion_encoder"]
    if strategy == "centralized":
        encoder["training"], strategy = "centralized", "fedavg"
    loaded = OmegaConf.load(CONFIG_DIR / "strategy" / f"{strategy}.yaml")
    encoder["strategy"] = OmegaConf.to_container(loaded)
    for path, value in entries.items():
        *parents, last = path.split("__")
        node = stages
        for parent in parents:
            node = node[parent]
        node[last] = value
    return {one.name: one.settings for one in plan_stages(stages, TRAINER, planner_sources({}))}


def planned_stage(name: str) -> dict[str, Any]:
    """The config of a stage in `planned`, to add a copy of it."""
    return copy.deepcopy(_stages()[name])
