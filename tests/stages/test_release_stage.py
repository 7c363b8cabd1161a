"""The release on the clients: whose noise it is, how long a latent may be, what it declares."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import DIM, artifact, run_stage, settings, stage_context, tiny_latents

from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.fingerprint import fingerprint
from fedsynth.privacy.clipping import clip_radius_from_norms, clip_to_radius
from fedsynth.privacy.gaussian import analytic_gaussian_std
from fedsynth.records import ShardRelease


def released(folder: Path, latents: Artifact, **changes: Any) -> tuple[ShardRelease, Artifact]:
    asked = settings("release", **changes)
    # As in a run: the key is a function of the settings, and names the noise.
    context = stage_context(folder, key=fingerprint(asked))
    made = run_stage("release", asked, {"latents": latents}, context)
    return ShardRelease.from_tensors(made.load("release.safetensors")), made


def standardized_noise(release: ShardRelease, exact: ShardRelease) -> torch.Tensor:
    return (release.means - exact.means) / release.noise_std.unsqueeze(-1)


def test_noise_streams_differ_between_budgets_and_repeat_for_one(tmp_path: Path, latents: Artifact) -> None:
    exact, _ = released(tmp_path / "exact", latents, epsilon=math.inf, clip_radius=9.0)
    noise = {
        name: standardized_noise(released(tmp_path / name, latents, clip_radius=9.0, **budget)[0], exact)
        for name, budget in {
            "one": {"epsilon": 1.0},
            "again": {"epsilon": 1.0},
            "four": {"epsilon": 4.0},
            "other delta": {"epsilon": 1.0, "delta": 1e-6},
            "other seed": {"epsilon": 1.0, "seed": 43},
        }.items()
    }
    assert torch.equal(noise["one"], noise["again"])
    names = ["one", "four", "other delta", "other seed"]
    for first in names:
        for second in names[names.index(first) + 1 :]:
            # Same stream, other scale, would give a correlation of 1; 32 independent draws stay far below.
            both = torch.stack([noise[first].flatten(), noise[second].flatten()])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 0.7, (first, second)


def test_secure_noise_never_repeats(tmp_path: Path, latents: Artifact) -> None:
    exact, _ = released(tmp_path / "exact", latents, epsilon=math.inf)
    first, second = (released(tmp_path / name, latents, secure_noise=True)[0] for name in ("a", "b"))
    assert torch.equal(first.noise_std, second.noise_std)
    both = torch.stack([standardized_noise(release, exact).flatten() for release in (first, second)])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.7


def test_clients_with_equal_latents_do_not_share_noise(tmp_path: Path) -> None:
    tensors = tiny_latents()
    first = tensors["train.client"] == 0
    tensors["train.latent"][~first] = tensors["train.latent"][first]
    # The same record numbers too, so that both deal their records alike.
    tensors["train.record_id"][~first] = tensors["train.record_id"][first]
    latents = artifact(tmp_path / "encode" / "output", {"latents.safetensors": tensors})
    exact, _ = released(tmp_path / "exact", latents, epsilon=math.inf)
    noisy, _ = released(tmp_path / "noisy", latents)
    assert torch.equal(exact.means[0], exact.means[1])
    assert torch.equal(noisy.noise_std[0], noisy.noise_std[1])
    difference = (noisy.means[0] - noisy.means[1]) / (math.sqrt(2) * noisy.noise_std[0].unsqueeze(-1))
    assert 0.4 < float(difference.std()) < 2  # 16 standard normal draws


def test_the_radius_is_a_percentile_of_validation_norms(tmp_path: Path, latents: Artifact) -> None:
    release, made = released(tmp_path / "a", latents, clip_percentile=50.0)
    norms = latents.load("latents.safetensors")["val.latent"].double().norm(dim=1)
    assert release.clip_radius == clip_radius_from_norms(norms, 50.0)
    assert float(norms.min()) < release.clip_radius < float(norms.max())
    radius = next(row for row in made.manifest["metrics"] if row["metric"] == "clip_radius")
    assert (radius["arm"], radius["value"]) == ("dp", release.clip_radius)


def test_a_given_radius_replaces_the_percentile_and_scales_the_noise(
    tmp_path: Path, latents: Artifact
) -> None:
    small, _ = released(tmp_path / "small", latents, clip_radius=0.5)
    large, made = released(tmp_path / "large", latents, clip_radius=2.0)
    assert (small.clip_radius, large.clip_radius) == (0.5, 2.0)
    torch.testing.assert_close(large.noise_std, 4 * small.noise_std)
    wanted = analytic_gaussian_std(4.0, 1e-5, 2 * 2.0 / 6)  # six records to a shard
    torch.testing.assert_close(large.noise_std, torch.full_like(large.noise_std, wanted))
    longer = latents.load("latents.safetensors")["train.latent"].norm(dim=1) > 2.0
    clipped = next(row for row in made.manifest["metrics"] if row["metric"] == "clipped_fraction")
    assert clipped["value"] == pytest.approx(float(longer.double().mean()))


def test_without_noise_the_means_are_those_of_clipped_latents(tmp_path: Path, latents: Artifact) -> None:
    release, made = released(tmp_path / "a", latents, epsilon=math.inf, clip_radius=2.0, num_shards=1)
    tensors = latents.load("latents.safetensors")
    clipped = clip_to_radius(tensors["train.latent"].double(), 2.0)
    for client in (0, 1):
        for label in (0, 1):
            cell = (tensors["train.client"] == client) & (tensors["train.label"] == label)
            torch.testing.assert_close(release.means[client, label, 0].double(), clipped[cell].mean(0))
    assert not release.noise_std.any()
    assert {row["arm"] for row in made.manifest["metrics"]} == {"nonprivate"}


def test_the_ledger_pays_for_the_budget(tmp_path: Path, latents: Artifact) -> None:
    _, made = released(tmp_path / "release", latents, epsilon=2.0, delta=1e-6)
    (entry,) = made.manifest["ledger"]
    assert (entry["stage"], entry["epsilon"], entry["delta"]) == ("release", 2.0, 1e-6)


def test_validation_and_test_latents_leave_the_client_by_the_radius_only(
    tmp_path: Path, latents: Artifact
) -> None:
    before, _ = released(tmp_path / "before", latents, clip_radius=2.0)
    tensors = latents.load("latents.safetensors")
    for name in ("val", "test"):
        tensors[f"{name}.latent"] = torch.zeros(1, DIM)
    changed = artifact(tmp_path / "changed" / "output", {"latents.safetensors": tensors})
    after, _ = released(tmp_path / "after", changed, clip_radius=2.0)
    assert torch.equal(before.means, after.means)
    assert torch.equal(before.variances, after.variances)


def test_more_shards_than_records_are_refused_before_anything_is_allocated(
    tmp_path: Path, latents: Artifact
) -> None:
    with pytest.raises(ConfigError, match=r"stages\.many\.num_shards must be ≤ 24, .* got 1000000"):
        released(tmp_path / "many", latents, num_shards=1_000_000)


@pytest.mark.parametrize(("radius", "warned"), [(1e-3, True), (1e3, False)])
def test_clipping_most_latents_is_warned_of(
    tmp_path: Path, latents: Artifact, caplog: pytest.LogCaptureFixture, radius: float, warned: bool
) -> None:
    released(tmp_path / "made", latents, clip_radius=radius)
    assert ("stages.made clips 100 % of the training latents" in caplog.text) == warned


@pytest.mark.parametrize(("delta", "warned"), [(0.5, True), (1e-5, False)])
def test_a_delta_that_protects_nobody_is_warned_of(
    tmp_path: Path, latents: Artifact, caplog: pytest.LogCaptureFixture, delta: float, warned: bool
) -> None:
    released(tmp_path / "made", latents, delta=delta)
    assert ("stages.made.delta=0.5 is not below 1 / 24" in caplog.text) == warned
