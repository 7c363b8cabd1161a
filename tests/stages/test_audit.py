"""The audit: what its numbers must be where the answer is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import DIM, artifact, run_stage, settings, stage_context, tiny_latents, values

from fedsynth.attacks import ReleasedMeans
from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.privacy.gaussian import analytic_gaussian_std
from fedsynth.records import ShardRelease
from fedsynth.seeding import generator
from fedsynth.stages.audit.snr import signal_to_noise, snr_metrics, snr_notes
from fedsynth.stages.release.audited import audited_release, published_means


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
    assert made.manifest["notes"]["too_few_samples_for_nearest_k"] == wanted


@pytest.mark.parametrize("nearest_k", [12, 50])
def test_more_neighbors_than_real_records_of_a_class_are_refused(
    tmp_path: Path, latents: Artifact, copies: Artifact, nearest_k: int
) -> None:
    wanted = rf"stages\.audit\.nearest_k must be below 12, .*got {nearest_k}\. Set evaluation\.nearest_k"
    with pytest.raises(ConfigError, match=wanted):
        audited(tmp_path, latents, copies, copies, nearest_k=nearest_k)


@pytest.fixture
def wide(tmp_path: Path) -> tuple[Artifact, Artifact]:
    """Latents with many more dimensions than records in a shard: an exact mean tells its members apart."""
    tensors = tiny_latents()
    stream = torch.Generator().manual_seed(4)
    for name in ("train", "val", "test"):
        tensors[f"{name}.latent"] = torch.randn(len(tensors[f"{name}.label"]), 200, generator=stream)
    latents = artifact(tmp_path / "wide" / "output", {"latents.safetensors": tensors})
    return latents, sampled(tmp_path / "samples", tensors["test.latent"], tensors["test.label"])


def test_without_noise_the_attack_is_stronger(tmp_path: Path, wide: tuple[Artifact, Artifact]) -> None:
    made, found = audited(tmp_path / "a", *wide, wide[1], num_attack_repetitions=8)
    exact = found[("membership_nonprivate", "matched_filter/attack_auroc", 42)]
    noisy = found[("membership_private", "matched_filter/attack_auroc", 42)]
    assert exact > 0.9
    assert noisy < 0.75
    for arm in ("nonprivate", "private"):
        for plain, score in (
            ("attack_auroc", "population_likelihood_ratio"),
            ("strongest_attack_auroc", "published_likelihood_ratio"),
            ("informed_attack_auroc", "informed"),
        ):
            value = found[(f"membership_{arm}", plain, 42)]
            assert value == found[(f"membership_{arm}", f"{score}/attack_auroc", 42)]
        assert (f"membership_{arm}_test_shift", "attack_auroc", 42) in found
    assert found[("membership_nonprivate", "informed_attack_auroc", 42)] == 1.0
    bound = found[("membership_private", "attack_auroc_bound", 42)]
    assert 0.5 < found[("membership_private", "informed_attack_auroc", 42)] < bound < 1
    for row in made.manifest["metrics"]:
        if row["metric"].endswith(("attack_auroc", "attack_auroc_mean")):
            assert row["ci_low"] <= row["value"] <= row["ci_high"]


def test_audits_of_two_budgets_are_paired_repetition_by_repetition(
    tmp_path: Path, wide: tuple[Artifact, Artifact]
) -> None:
    stored = []
    for name, epsilon, key in (("a", 1.0, "1" * 64), ("b", 8.0, "2" * 64)):
        folder = tmp_path / name
        release = run_stage(
            "release",
            settings("release", epsilon=epsilon),
            {"latents": wide[0]},
            stage_context(folder / "release"),
        )
        inputs = {"latents": wide[0], "release": release, "mixture": wide[1], "synthetic": wide[1]}
        audit = settings("audit", samples_per_class=1000, num_attack_repetitions=3)
        made = run_stage("audit", audit, inputs, stage_context(folder / "audit", key=key))
        stored.append(made.load("membership.safetensors"))
        arm = values(made)[("membership_private", "noise_std_over_sensitivity", 42)]
        assert arm == pytest.approx(analytic_gaussian_std(epsilon, 1e-5, 1.0), rel=1e-9)
    names = {name.removesuffix(".auroc") for name in stored[0] if name.endswith(".auroc")}
    assert {f"{name}.{what}" for name in names for what in ("auroc", "score_gap")} == set(stored[0])
    assert all(values.shape == (3,) for values in stored[0].values())
    # The arm without noise sees the same candidates in both audits, and exact variances know no noise at all.
    for name in stored[0]:
        if "nonprivate" in name or "variance" in name:
            assert torch.equal(stored[0][name], stored[1][name]), name
    noisy = "membership_private.matched_filter.score_gap"
    assert not torch.equal(stored[0][noisy], stored[1][noisy])


def test_the_audited_release_without_noise_is_the_mean_of_the_records_it_names(
    tmp_path: Path, latents: Artifact
) -> None:
    made = run_stage(
        "release", settings("release"), {"latents": latents}, stage_context(tmp_path / "release")
    )
    release, tensors = audited_release(made), latents.load("latents.safetensors")
    records = tensors["train.latent"], tensors["train.label"], tensors["train.client"]
    again = release.at(math.inf)(*records, generator(0, "any"))
    norm = records[0].double().norm(dim=1, keepdim=True)
    clipped = records[0].double() * (release.clip_radius / norm).clamp(max=1)
    for row in range(len(again.counts)):
        inside = again.shard_of_record == row
        assert int(inside.sum()) == int(again.counts[row])
        assert torch.allclose(clipped[inside].mean(dim=0), again.means[row])
        assert torch.allclose(clipped[inside].var(dim=0, correction=0), again.variances[row])
        assert set(records[1][inside].tolist()) == {int(again.labels[row])}
        assert set(records[2][inside].tolist()) == {int(again.clients[row])}
    assert torch.equal(again.counts, release.published.counts)
    noisy = release.at(release.epsilon)
    assert torch.equal(noisy(*records, generator(0, "any")).means, noisy(*records, generator(0, "any")).means)
    assert torch.allclose(noisy(*records, generator(0, "any")).noise_std, release.published.noise_std)


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
    rows = published_means(release, torch.tensor([0, 2, 3, 3]))
    assert rows.means.tolist() == [[0, 1], [4, 5], [6, 7]]
    assert [part.tolist() for part in rows[1:5]] == [[1, 2, 3], [3, 2, 4], [0, 1, 1], [0, 0, 0]]
    assert rows.shard_of_record.tolist() == [0, 1, 2, 2]


def _three_shards(noise: tuple[float, float, float]) -> ReleasedMeans:
    return ReleasedMeans(
        torch.zeros(3, 4),
        torch.tensor(noise, dtype=torch.float64),
        torch.tensor([10, 30, 5]),
        torch.tensor([0, 0, 1]),
        torch.tensor([0, 0, 0]),
    )


def test_signal_to_noise_by_hand() -> None:
    latents = torch.zeros(45, 4)
    latents[40:, 0] = 3.0
    labels = torch.tensor([0] * 40 + [1] * 5)
    rows = signal_to_noise(
        _three_shards((1.0, 1 / 3, 2.0)), latents, labels, torch.zeros(45).long(), clip_radius=2.0
    )
    negative, positive = rows
    # Clipped, the classes are 2 apart; noise is σ √4 long.
    assert (negative.records, negative.shards, negative.smallest_shard) == (40, 2, 10)
    assert (negative.class_distance, negative.noise_norm, negative.shard_snr) == pytest.approx((2, 2, 1))
    assert negative.direction_snr == pytest.approx(2)
    # The mean over both shards has noise √((10 · 1)² + (30 / 3)²) / 40.
    assert negative.cell_snr == pytest.approx(2 / (2 * math.sqrt(200) / 40))
    assert (positive.shard_snr, positive.cell_snr, positive.mean_norm) == pytest.approx((0.5, 0.5, 2))
    found = {metric.metric: metric.value for metric in snr_metrics(rows, 42)}
    assert found["shard_snr_min"] == pytest.approx(0.5)
    assert found["shard_snr_median"] == pytest.approx(0.75)
    assert found["shard_snr_below_one"] == 0.5
    assert snr_notes(rows)[1]["smallest_shard"] == 5


def test_a_client_with_one_class_takes_the_class_distance_of_all() -> None:
    latents = torch.tensor([[0.0], [0.0], [4.0]])
    labels, clients = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    published = ReleasedMeans(
        torch.zeros(1, 1), torch.ones(1), torch.tensor([1]), torch.tensor([0]), torch.tensor([0])
    )
    (row,) = signal_to_noise(published, latents, labels, clients, clip_radius=10.0)
    assert row.class_distance == 4


def test_without_noise_the_ratio_is_infinite_and_stored_as_null() -> None:
    latents, labels = torch.ones(45, 4), torch.tensor([0] * 40 + [1] * 5)
    rows = signal_to_noise(_three_shards((0.0, 0.0, 0.0)), latents, labels, torch.zeros(45).long(), 1.0)
    assert rows[0].shard_snr == math.inf
    assert snr_notes(rows)[0]["shard_snr"] is None
    assert snr_metrics(rows, 42) == []


def test_the_audit_notes_signal_to_noise_of_every_client_and_class(
    tmp_path: Path, latents: Artifact, samples: Artifact
) -> None:
    made, found = audited(tmp_path, latents, samples, samples)
    table = made.manifest["notes"]["signal_to_noise"]
    assert [(row["client"], row["label"]) for row in table] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert min(row["shard_snr"] for row in table) == found[("signal_to_noise", "shard_snr_min", 42)]
