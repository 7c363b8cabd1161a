"""Synthetic latents: balanced, a function of the seed, in the units of the mixture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_stages import equal, run_stage, settings, stage_context

from fedsynth.errors import DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.synthesize.selection import validation_auroc


@pytest.fixture
def denoiser(tmp_path: Path, samples: Artifact) -> Artifact:
    inputs = {"mixture": samples}
    return run_stage("latent_ddpm", settings("latent_ddpm"), inputs, stage_context(tmp_path / "ddpm", 3))


def synthesized(folder: Path, denoiser: Artifact, **changes: Any) -> dict[str, torch.Tensor]:
    made = run_stage(
        "synthesize", settings("synthesize", **changes), {"denoiser": denoiser}, stage_context(folder)
    )
    return made.load("samples.safetensors")


def replaced(folder: Path, denoiser: Artifact, stored: dict[str, torch.Tensor]) -> Artifact:
    folder.mkdir()
    save_file(stored, folder / "denoiser.safetensors")
    return dataclasses.replace(denoiser, path=folder)


def test_classes_are_balanced(tmp_path: Path, denoiser: Artifact) -> None:
    made = synthesized(tmp_path / "a", denoiser, num_per_class=7)
    assert made["label"].tolist() == [0] * 7 + [1] * 7
    assert made["latent"].shape == (14, 4)
    assert bool(made["latent"].isfinite().all())


def test_batches_do_not_change_the_samples_beyond_rounding(tmp_path: Path, denoiser: Artifact) -> None:
    whole = synthesized(tmp_path / "whole", denoiser, batch_size=1000)
    for size in (1, 7):
        parts = synthesized(tmp_path / str(size), denoiser, batch_size=size)
        torch.testing.assert_close(parts["latent"], whole["latent"], atol=1e-4, rtol=1e-4)


def test_samples_are_a_function_of_the_seed(tmp_path: Path, denoiser: Artifact) -> None:
    first = synthesized(tmp_path / "a", denoiser)
    torch.rand(3)
    assert equal(first, synthesized(tmp_path / "b", denoiser))
    assert not torch.equal(first["latent"], synthesized(tmp_path / "c", denoiser, seed=7)["latent"])


def test_labels_play_no_part_at_guidance_scale_zero(tmp_path: Path, denoiser: Artifact) -> None:
    stored = denoiser.load("denoiser.safetensors")
    (name,) = [name for name in stored if "class_embedding" in name]
    stored[name][:2] += 1.0  # of the two classes; the last row stands for none
    relabeled = replaced(tmp_path / "relabeled", denoiser, stored)
    for scale in (0.0, 1.0):
        before = synthesized(tmp_path / f"before {scale}", denoiser, guidance_scale=scale)["latent"]
        after = synthesized(tmp_path / f"after {scale}", relabeled, guidance_scale=scale)["latent"]
        assert torch.equal(before, after) == (scale == 0)


def test_samples_are_in_the_units_of_the_mixture(tmp_path: Path, denoiser: Artifact) -> None:
    stored = denoiser.load("denoiser.safetensors")
    before = synthesized(tmp_path / "a", denoiser)["latent"]
    moved = {**stored, "scaler.mean": stored["scaler.mean"] + 5, "scaler.std": 2 * stored["scaler.std"]}
    after = synthesized(tmp_path / "b", replaced(tmp_path / "moved", denoiser, moved))["latent"]
    mean = stored["scaler.mean"].float()
    torch.testing.assert_close(after, 2 * (before - mean) + mean + 5, atol=1e-4, rtol=1e-4)


def selected(folder: Path, denoiser: Artifact, real: Artifact) -> Artifact:
    inputs = {"denoiser": denoiser, "validation": real}
    return run_stage("synthesize", settings("synthesize"), inputs, stage_context(folder))


def test_the_snapshot_with_the_best_validation_ranking_is_sampled(
    tmp_path: Path, samples: Artifact, latents: Artifact
) -> None:
    trained = stage_context(tmp_path / "ddpm", 4)
    chosen = settings("latent_ddpm", num_snapshots=2, learning_rate=1e-2)
    denoiser = run_stage("latent_ddpm", chosen, {"mixture": samples}, trained)
    made = selected(tmp_path / "selected", denoiser, latents)
    rows = {(row["arm"], row["metric"]): row["value"] for row in made.manifest["metrics"]}
    reached = {epoch: rows[f"epoch_{epoch}", "val/auroc"] for epoch in (2, 4)}
    best = max(sorted(reached), key=lambda epoch: (reached[epoch], epoch))
    assert rows["selected", "epoch"] == best
    final = synthesized(tmp_path / "final", denoiser)
    weights = {
        name.removeprefix("2/"): tensor for name, tensor in denoiser.load("snapshots.safetensors").items()
    }
    scaler = {
        name: tensor for name, tensor in denoiser.load("denoiser.safetensors").items() if "scaler" in name
    }
    early = synthesized(tmp_path / "early", replaced(tmp_path / "weights", denoiser, {**weights, **scaler}))
    assert equal(made.load("samples.safetensors"), {2: early, 4: final}[best])
    assert not equal(early, final)


def test_validation_latents_of_one_class_are_refused(latents: Artifact) -> None:
    real = latents.load("latents.safetensors")
    with pytest.raises(DataError, match="validation latents hold one class only"):
        validation_auroc(
            real["train.latent"], real["train.label"],
            validation=real["val.latent"], validation_labels=torch.ones_like(real["val.label"]),
        )  # fmt: skip


def test_probe_ranks_separated_classes_perfectly_and_noise_by_chance() -> None:
    stream = torch.Generator().manual_seed(0)
    label = torch.arange(2000) % 2
    noise = torch.randn(2000, 4, generator=stream)
    far = noise + 20 * label[:, None]
    assert validation_auroc(far, label, validation=far, validation_labels=label) == 1.0
    # Chance: 0.5 with a standard error of 1 / sqrt(12 n) ≈ 0.013 for classes of 1,000.
    fresh = torch.randn(2000, 4, generator=stream)
    assert abs(validation_auroc(noise, label, validation=fresh, validation_labels=label) - 0.5) < 0.06
