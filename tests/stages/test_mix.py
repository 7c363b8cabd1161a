"""The mixture on the server: a function of the release alone, sampled in equal shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import equal, run_stage, settings, stage_context

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Side, find_stage
from fedsynth.prototypes import mixture_from_release, sample_mixture
from fedsynth.records import Mixture, ShardRelease
from fedsynth.seeding import generator


@pytest.fixture
def release(tmp_path: Path, latents: Artifact) -> Artifact:
    inputs = {"latents": latents}
    return run_stage("release", settings("release"), inputs, stage_context(tmp_path / "release"))


def mixed(folder: Path, release: Artifact, **changes: Any) -> Artifact:
    return run_stage("mix", settings("mix", **changes), {"release": release}, stage_context(folder))


def test_the_mixture_and_its_samples_follow_from_the_release_alone(tmp_path: Path, release: Artifact) -> None:
    stage = find_stage("mix", "mix")
    assert (stage.roles, stage.optional_roles, stage.data) == (("release",), (), ())
    assert stage.side is Side.SERVER
    made = mixed(tmp_path / "mix", release)
    wanted = mixture_from_release(
        ShardRelease.from_tensors(release.load("release.safetensors")), floor=settings("mix").variance_floor
    )
    assert equal(made.load("mixture.safetensors"), wanted.to_tensors())
    latent, label = sample_mixture(wanted, 32, generator(42, "mix", "samples"))
    assert equal(made.load("samples.safetensors"), {"latent": latent.float(), "label": label})


def test_samples_are_balanced_and_change_with_the_seed_only(tmp_path: Path, release: Artifact) -> None:
    first = mixed(tmp_path / "a", release, num_samples=41)
    other = mixed(tmp_path / "b", release, num_samples=41, seed=7)
    assert first.load("samples.safetensors")["label"].bincount().tolist() == [20, 20]
    assert equal(first.load("mixture.safetensors"), other.load("mixture.safetensors"))
    assert not torch.equal(
        first.load("samples.safetensors")["latent"], other.load("samples.safetensors")["latent"]
    )


def test_the_floor_holds_in_every_variance(tmp_path: Path, release: Artifact) -> None:
    made = Mixture.from_tensors(
        mixed(tmp_path / "a", release, variance_floor=50.0).load("mixture.safetensors")
    )
    assert float(made.variances.min()) >= 50.0


def test_subtracting_the_noise_narrows_the_mixture_and_moves_no_mean(
    tmp_path: Path, release: Artifact
) -> None:
    plain = Mixture.from_tensors(mixed(tmp_path / "a", release).load("mixture.safetensors"))
    corrected = Mixture.from_tensors(
        mixed(tmp_path / "b", release, subtract_noise=True).load("mixture.safetensors")
    )
    assert torch.equal(plain.means, corrected.means)
    assert bool((corrected.variances <= plain.variances).all())
    assert bool((corrected.variances < plain.variances).any())
