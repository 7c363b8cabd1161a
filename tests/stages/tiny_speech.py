"""Spoken segments small enough for a test, and the settings of a classifier of them."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny_federations import strategy
from tiny_stages import TRAINER, artifact, run_stage, stage_context

from fedsynth.composition import compose_config, resolved
from fedsynth.data.paired import GLOBAL
from fedsynth.data.speech import SpeechClients, SpeechSplit
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import plan_stages
from fedsynth.run_sources import planner_sources

FRAMES, DESCRIPTORS, UTTERANCES, WORDS = 12, 5, 3, 8
OVERRIDES = (
    "speech_model.hidden_dim=8", "speech_model.embedding_dim=6", "speech_model.num_heads=2",
    "federated.batch_size=8", "federated.local_epochs=2", "federated.learning_rate=0.01",
)  # fmt: skip


@cache
def _planned() -> Any:
    config = resolved(compose_config(["experiment=fedmpa", *OVERRIDES]))
    stages = {name: config["stages"][name] for name in ("clients", "fedmpa")}
    plan = plan_stages(stages, TRAINER, planner_sources({}))
    return {planned.name: planned.settings for planned in plan}["fedmpa"]


def speech_settings(system: str = "fedmpa", **changes: Any) -> Any:
    """The settings of one of the systems of ``experiment=fedmpa``, made tiny."""
    if system == "centralized":
        changes, system = {"training": "centralized", **changes}, "fedavg"
    return dataclasses.replace(_planned(), **{"strategy": strategy(system), **changes})


def tiny_segments(first: int, num: int, stream: torch.Generator, clients: int = 0) -> SpeechSplit:
    """Segments of ``num`` participants, one to three of each; classes and clients alternate.

    Frames and utterances are many or few, in no order; what lies behind a length is zero.
    """
    count = 1 + torch.arange(num) % 3
    person = torch.arange(num).repeat_interleave(count)
    total, label = len(person), person % 2
    audio_length = 1 + torch.randperm(total, generator=stream) % FRAMES
    text_length = 1 + torch.randint(UTTERANCES, (total,), generator=stream)
    shift = (2.0 * label - 1).view(-1, 1, 1)
    audio = torch.randn(total, FRAMES, DESCRIPTORS, generator=stream) + shift
    text = torch.randn(total, UTTERANCES, WORDS, generator=stream) + shift
    audio *= (torch.arange(FRAMES) < audio_length.unsqueeze(1)).unsqueeze(2)
    text *= (torch.arange(UTTERANCES) < text_length.unsqueeze(1)).unsqueeze(2)
    return SpeechSplit(
        audio=audio,
        audio_length=audio_length,
        text=text,
        text_length=text_length,
        label=label,
        participant=first + person,
        segment=torch.cat([torch.arange(int(n)) for n in count]),
        client=person // 2 % clients if clients else torch.full((total,), GLOBAL),
    )


def tiny_speech() -> SpeechClients:
    """Two clients with eight participants each; six participants in validation and six in the test split."""
    stream = torch.Generator().manual_seed(0)
    return SpeechClients(
        tiny_segments(300, 16, stream, clients=2), tiny_segments(400, 6, stream), tiny_segments(600, 6, stream), {}
    )  # fmt: skip


def speech_artifact(folder: Path, speech: SpeechClients | None = None) -> Artifact:
    """What the stage ``speech_clients`` yields."""
    tensors = (speech or tiny_speech()).to_tensors()
    return artifact(folder / "clients" / "output", {"speech.safetensors": tensors})


def train_speech(
    folder: Path, clients: Artifact, system: str = "fedmpa", *, rounds: int = 2, **changes: Any
) -> Artifact:
    asked = speech_settings(system, **changes)
    return run_stage("speech_classifier", asked, {"clients": clients}, stage_context(folder, rounds))
