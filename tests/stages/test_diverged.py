"""A diverged result is refused before it is committed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_stages import run_stage, settings, stage_context

from fedsynth.errors import ArtifactError
from fedsynth.pipeline.artifacts import Artifact


def test_values_that_are_not_finite_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    context = stage_context(tmp_path / "latent_ddpm", learning_rate=3.0)
    tensors = {
        "fine": torch.ones(3),
        "bad": torch.tensor([1.0, math.nan, math.inf]),
        "whole": torch.ones(2).long(),
    }
    with pytest.raises(ArtifactError) as caught:
        context.save("denoiser.safetensors", tensors)
    assert str(caught.value).startswith(
        "stages.latent_ddpm diverged: denoiser.safetensors holds 2 non-finite values in bad; "
        "lower its learning_rate (stages.latent_ddpm.learning_rate=3) or look for an extreme setting."
    )
    assert list(context.output.iterdir()) == []


def test_a_tensor_that_may_be_infinite_is_not_checked(tmp_path: Path) -> None:
    context = stage_context(tmp_path / "release")
    context.save("a.safetensors", {"epsilon": torch.tensor(math.inf)}, may_be_infinite=("epsilon",))
    assert (context.output / "a.safetensors").is_file()


def test_a_diverged_denoiser_is_not_kept(tmp_path: Path, samples: Artifact) -> None:
    context = stage_context(tmp_path / "ddpm", max_epochs=3)
    with pytest.raises(ArtifactError, match=r"stages\.ddpm diverged: denoiser\.safetensors holds"):
        run_stage("latent_ddpm", settings("latent_ddpm", learning_rate=1e38), {"mixture": samples}, context)


def test_a_diverged_classifier_is_not_tested(tmp_path: Path, samples: Artifact, latents: Artifact) -> None:
    context = stage_context(tmp_path / "tstr", max_epochs=3)
    asked = settings("tstr_diffusion", learning_rate=1e38)
    with pytest.raises(ArtifactError, match=r"stages\.tstr diverged: the classifier of seed 1 holds"):
        run_stage("tstr_mlp", asked, {"train": samples, "latents": latents}, context)
