"""The audit: what its numbers must be where the answer is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import DIM, artifact, run_stage, settings, stage_context, tiny_latents, values

from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.records import ShardRelease
from fedsynth.stages.audit.run import flatten_release


def sampled(folder: Path, latent: torch.Tensor, label: torch.Tensor) -> Artifact:
    return artifact(folder / "output", {"samples.safetensors": {"latent": latent, "label": label}})


def audited(
    folder: Path, latents: Artifact, synthetic: Artifact, mixture: Artifact, **changes: Any
) -> tuple[Artifact, dict[tuple[str, str, int], float]]:
    release = run_stage(
        "release", settings("release"), {"latents": latents}, stage_context(folder / "release")
    )
    made = run_stage(
        "audit",
        settings("audit", **{"samples_per_class": 1000, **changes}),
        {"latents": latents, "release": release, "mixture": mixture, "synthetic": synthetic},
        stage_context(folder / "audit"),
    )
    return made, values(made)


@pytest.fixture
def copies(tmp_path: Path, latents: Artifact) -> Artifact:
    """A generator that returns the real test latents."""
    tensors = latents.load("latents.safetensors")
    return sampled(tmp_path / "copies", tensors["test.latent"], tensors["test.label"])


def test_copies_of_the_test_latents_score_perfectly(
    tmp_path: Path, latents: Artifact, copies: Artifact, samples: Artifact
) -> None:
    made, found = audited(tmp_path, latents, copies, samples)
    for arm in ("negative", "positive"):
        for metric in ("precision", "recall", "coverage"):
            assert found[(arm, metric, 42)] == 1.0
        assert found[(arm, "frechet_distance", 42)] == pytest.approx(0, abs=1e-5)
        assert found[(arm, "rbf_mmd", 42)] <= 0  # the unbiased estimate leaves out each point's own kernel
        assert found[(arm, "mean_gap", 42)] == pytest.approx(0, abs=1e-6)
        assert found[(arm, "real_mean_norm", 42)] == pytest.approx(found[(arm, "synthetic_mean_norm", 42)])
        # The mixture is another generator, and no such copy.
        assert found[(f"mixture_{arm}", "frechet_distance", 42)] > 0.01
    assert found[("disclosure", "nn_median_held_out", 42)] == 0
    distances = made.load("distances.safetensors")
    assert float(distances["held_out"].max()) == 0
    wanted = float(distances["train"].quantile(0.5))
    assert found[("disclosure", "nn_median_train", 42)] == pytest.approx(wanted)


def test_copies_of_training_latents_are_disclosed_as_near_duplicates(
    tmp_path: Path, latents: Artifact, samples: Artifact
) -> None:
    tensors = latents.load("latents.safetensors")
    memorized = sampled(tmp_path / "memorized", tensors["train.latent"], tensors["train.label"])
    _, found = audited(tmp_path / "a", latents, memorized, samples)
    assert found[("disclosure", "nn_median_train", 42)] == 0
    assert found[("disclosure", "near_duplicate_fraction", 42)] == 1.0
    # The limit row is this very comparison.
    for metric in ("precision", "coverage", "frechet_distance"):
        assert found[("real_train_positive", metric, 42)] == found[("positive", metric, 42)]


def test_far_samples_have_no_precision_and_no_coverage(
    tmp_path: Path, latents: Artifact, copies: Artifact
) -> None:
    stored = copies.load("samples.safetensors")
    far = sampled(tmp_path / "far", stored["latent"] + 1000, stored["label"])
    _, found = audited(tmp_path / "a", latents, far, copies)
    for arm in ("negative", "positive"):
        assert found[(arm, "precision", 42)] == found[(arm, "coverage", 42)] == 0
        assert found[(arm, "mean_gap", 42)] == pytest.approx(1000 * math.sqrt(DIM), rel=1e-3)


def test_too_few_samples_leave_neighborhoods_undefined_and_the_rest_alone(
    tmp_path: Path, latents: Artifact, copies: Artifact
) -> None:
    made, found = audited(tmp_path, latents, copies, copies, nearest_k=3, samples_per_class=3)
    for metric in ("precision", "recall", "density", "coverage"):
        assert math.isnan(found[("negative", metric, 42)])
        assert math.isfinite(found[("real_train_negative", metric, 42)])
    assert math.isfinite(found[("negative", "frechet_distance", 42)])
    wanted = ["mixture_negative", "mixture_positive", "negative", "positive"]
    assert made.manifest["notes"] == {"too_few_samples_for_nearest_k": wanted}


@pytest.mark.parametrize("nearest_k", [12, 50])
def test_more_neighbors_than_real_records_of_a_class_are_refused(
    tmp_path: Path, latents: Artifact, copies: Artifact, nearest_k: int
) -> None:
    wanted = rf"stages\.audit\.nearest_k must be below 12, .*got {nearest_k}\. Set evaluation\.nearest_k"
    with pytest.raises(ConfigError, match=wanted):
        audited(tmp_path, latents, copies, copies, nearest_k=nearest_k)


def test_without_noise_the_attack_is_stronger(tmp_path: Path, copies: Artifact) -> None:
    # Many more dimensions than records in a shard: there an exact mean tells its members apart.
    tensors = tiny_latents()
    stream = torch.Generator().manual_seed(4)
    for name in ("train", "val", "test"):
        tensors[f"{name}.latent"] = torch.randn(len(tensors[f"{name}.label"]), 200, generator=stream)
    latents = artifact(tmp_path / "wide" / "output", {"latents.safetensors": tensors})
    wide = sampled(tmp_path / "samples", tensors["test.latent"], tensors["test.label"])
    made, found = audited(tmp_path / "a", latents, wide, wide, num_attack_repetitions=8)
    exact = found[("membership_nonprivate", "matched_filter/attack_auroc", 42)]
    noisy = found[("membership_private", "matched_filter/attack_auroc", 42)]
    assert exact > 0.9
    assert noisy < 0.75
    for arm in ("nonprivate", "private"):
        plain = found[(f"membership_{arm}", "attack_auroc", 42)]
        assert plain == found[(f"membership_{arm}", "matched_filter/attack_auroc", 42)]
        assert (f"membership_{arm}_test_shift", "attack_auroc", 42) in found
    for row in made.manifest["metrics"]:
        if row["metric"] == "attack_auroc":
            assert row["ci_low"] <= row["value"] <= row["ci_high"]


def test_an_attacker_sees_one_row_per_occupied_shard() -> None:
    counts = torch.tensor([[[3, 0], [2, 4]]])
    release = ShardRelease(
        means=torch.arange(8.0).view(1, 2, 2, 2) * (counts > 0).unsqueeze(-1),
        variances=torch.ones(1, 2, 2, 2),
        counts=counts,
        noise_std=torch.tensor([[[1.0, 0.0], [2.0, 3.0]]]),
        clip_radius=1.0,
        epsilon=1.0,
        delta=1e-5,
    )
    rows = flatten_release(release)
    assert rows[0].tolist() == [[0, 1], [4, 5], [6, 7]]
    assert [part.tolist() for part in rows[1:]] == [[1, 2, 3], [3, 2, 4], [0, 1, 1], [0, 0, 0]]
