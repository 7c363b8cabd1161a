"""The release that pays for everything: what it declares, what it refuses, what the auditor makes of it."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import TRAINER, artifact, run_stage, settings, stage_context, values

from fedsynth.composition import compose_config, resolved
from fedsynth.errors import ConfigError, PrivacyError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.fingerprint import fingerprint
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import Sensitivity, find_stage
from fedsynth.privacy import Adjacency, Ledger, composed_epsilon
from fedsynth.prototypes import PARTS, MomentRelease, mixture_from_moments
from fedsynth.records import Mixture, ShardRelease
from fedsynth.run_sources import planner_sources
from fedsynth.stages.release.audited import audited_release
from fedsynth.stages.release.spec import SHARES, ReleaseSettings
from fedsynth.stages.release.stored import load_release

DIM = 6


@pytest.fixture
def many(tmp_path: Path) -> Artifact:
    """Latents of three clients along a line, enough of them for ε = 4."""
    source = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for name, size in (("train", 6000), ("val", 200), ("test", 600)):
        label = torch.arange(size) % 2
        latent = 0.1 * torch.randn(size, DIM, generator=source)
        latent[:, 0] += torch.randn(size, generator=source) + torch.where(label == 1, 6.0, -3.0)
        latent[:, 1] += 0.5 * torch.randn(size, generator=source)
        tensors |= {
            f"{name}.latent": latent, f"{name}.label": label, f"{name}.client": torch.arange(size) % 3,
            f"{name}.record_id": torch.arange(size),
        }  # fmt: skip
    return artifact(tmp_path / "many" / "output", {"latents.safetensors": tensors})


def paid(**changes: Any) -> ReleaseSettings:
    wanted: ReleaseSettings = settings("release", **({"variant": "moments"} | changes))
    return wanted


def released(folder: Path, latents: Artifact, **changes: Any) -> tuple[MomentRelease, Artifact]:
    asked = paid(**changes)
    made = run_stage("release", asked, {"latents": latents}, stage_context(folder, key=fingerprint(asked)))
    release = load_release(made)
    assert isinstance(release, MomentRelease)
    return release, made


def test_the_ledger_lists_the_parts_and_they_cost_the_budget(tmp_path: Path, many: Artifact) -> None:
    _, made = released(tmp_path / "release", many, max_rank=4)  # not all six: the search goes on to its end
    (entry,) = Ledger.from_records(json.loads(json.dumps(made.manifest["ledger"]))).entries
    assert (entry.epsilon, entry.delta, entry.adjacency) == (4.0, 1e-5, Adjacency.REPLACE_ONE_ANY_LABEL)
    assert {part.name for part in entry.parts} == set(PARTS) == set(SHARES)
    assert composed_epsilon([part.mu for part in entry.parts], 1e-5) == pytest.approx(4.0, rel=1e-9)
    assert made.manifest["notes"]["parts"] == [part._asdict() for part in entry.parts]


def test_only_client_sizes_and_the_encoder_stay_outside(tmp_path: Path, many: Artifact) -> None:
    stage, asked = find_stage("release", "release"), paid()
    assert stage.uncovered(asked) == ("the number of records of each client",)
    assert stage.price(asked) == (4.0, 1e-5)
    assert stage.yields(asked, {}) is Sensitivity.RELEASED
    open_ended = paid(epsilon=math.inf)
    assert stage.yields(open_ended, {}) is Sensitivity.PRIVATE
    assert stage.price(open_ended) is None
    numbers = {row["metric"] for row in released(tmp_path / "made", many)[1].manifest["metrics"]}
    assert not {"clipped_fraction", "shard_size_min"} & numbers


def test_neither_validation_nor_test_latents_nor_record_numbers_matter(
    tmp_path: Path, many: Artifact
) -> None:
    before = released(tmp_path / "before", many)[0].to_tensors()
    tensors = many.load("latents.safetensors")
    tensors |= {"val.latent": torch.zeros(1, DIM), "test.latent": torch.zeros(1, DIM)}
    tensors["train.record_id"] = tensors["train.record_id"].flip(0)
    after = released(
        tmp_path / "after", artifact(tmp_path / "x" / "output", {"latents.safetensors": tensors})
    )
    assert all(torch.equal(value, after[0].to_tensors()[name]) for name, value in before.items())


def test_noise_repeats_for_one_artifact_and_not_for_another(tmp_path: Path, many: Artifact) -> None:
    exact = released(tmp_path / "exact", many, epsilon=math.inf)[0]
    noise = {}
    for name, change in {
        "one": {}, "again": {}, "seed": {"seed": 7}, "delta": {"delta": 1e-6}, "secure": {"secure_noise": True},
    }.items():  # fmt: skip
        release = released(tmp_path / name, many, **change)[0]
        noise[name] = (release.class_counts - exact.class_counts) / release.count_std
    assert torch.equal(noise["one"], noise["again"])
    names = ["one", "seed", "delta", "secure"]
    for first in names:
        for second in names[names.index(first) + 1 :]:
            assert not torch.allclose(
                noise[first] / noise[first].norm(), noise[second] / noise[second].norm()
            )


def test_a_radius_that_cannot_be_paid_for_is_refused_at_the_start(tmp_path: Path, latents: Artifact) -> None:
    with pytest.raises(PrivacyError, match=r"stages\.made: the private 0\.75 quantile .* cannot be paid for"):
        released(tmp_path / "made", latents)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"shares": {**dict.fromkeys(SHARES, 0.1)}}, "stages.release.shares"),
        ({"shares": {"means": 1.0}}, "stages.release.shares"),
        (
            {"shares": dict(zip(SHARES, (0.5, 0.4, 0.2, -0.1, 0.0, 0.0), strict=True))},
            "stages.release.shares",
        ),
        ({"radius_low": 10.0, "radius_high": 1.0}, "stages.release.radius_low"),
        ({"variant": "everything"}, "stages.release.variant"),
        ({"composition": "hope"}, "stages.release.composition"),
        ({"radius_quantile": 1.0}, "stages.release.radius_quantile"),
        ({"num_components": 0}, "stages.release.num_components"),
    ],
)
def test_impossible_settings_are_refused_before_anything_runs(change: dict[str, Any], key: str) -> None:
    given = dataclasses.asdict(paid()) | change
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")) as caught:
        build_settings(ReleaseSettings, given, "stages.release")
    assert caught.value.key == key


def test_the_mixture_of_the_server_is_that_of_the_release(tmp_path: Path, many: Artifact) -> None:
    release, made = released(tmp_path / "release", many)
    mix = run_stage("mix", settings("mix"), {"release": made}, stage_context(tmp_path / "mix"))
    stored = Mixture.from_tensors(mix.load("mixture.safetensors"))
    wanted = mixture_from_moments(release, floor=settings("mix").variance_floor)
    assert stored.factors is not None
    assert torch.equal(stored.factors, wanted.factors)
    samples = mix.load("samples.safetensors")
    assert samples["label"].bincount().tolist() == [32, 32]
    for label, place in ((0, -3.0), (1, 6.0)):
        own = samples["latent"][samples["label"] == label]
        assert float(own[:, 0].mean()) == pytest.approx(place, abs=1.5)
        assert float(own[:, 2:].std()) < 0.5


def test_the_auditor_attacks_the_coordinates_with_the_noise_of_the_release(
    tmp_path: Path, many: Artifact
) -> None:
    release, made = released(tmp_path / "release", many)
    audited = audited_release(made)
    tensors = many.load("latents.safetensors")
    vectors, groups = audited.view(tensors["train.latent"], tensors["train.label"])
    assert vectors.shape == (6000, release.frame.basis.shape[1])
    assert float(vectors.norm(dim=1).max()) <= audited.view_radius
    assert groups.max() < audited.num_groups
    clients = tensors["train.client"]
    exact = audited.at(math.inf)(vectors, groups, clients, torch.Generator().manual_seed(0))
    noisy = audited.at(audited.epsilon)(vectors, groups, clients, torch.Generator().manual_seed(0))
    assert not exact.noise_std.any()
    torch.testing.assert_close(
        noisy.noise_std * noisy.counts, torch.full_like(noisy.noise_std, release.sum_std)
    )
    row = int(torch.nonzero((exact.clients == 1) & (exact.labels == groups[1])).flatten()[0])
    own = (clients == 1) & (groups == groups[1])
    torch.testing.assert_close(exact.means[row], vectors[own].mean(dim=0))
    assert exact.shard_of_record is not None
    assert bool((exact.shard_of_record[own] == row).all())


def test_the_audit_runs_on_a_release_of_moments(tmp_path: Path, many: Artifact) -> None:
    _, made = released(tmp_path / "release", many)
    mix = run_stage("mix", settings("mix"), {"release": made}, stage_context(tmp_path / "mix"))
    inputs = {"latents": many, "release": made, "mixture": mix, "synthetic": mix}
    audit = run_stage(
        "audit", settings("audit", num_attack_repetitions=3), inputs, stage_context(tmp_path / "audit")
    )
    found = values(audit)
    assert 0.4 < found[("membership_private", "second_moment_filter/attack_auroc", 42)] < 0.6
    assert found[("membership_private", "noise_std_over_sensitivity", 42)] == pytest.approx(
        1 / next(
            part["sensitivity"] / part["noise_std"]
            for part in made.manifest["notes"]["parts"] if part["name"] == "means"
        )
    )  # fmt: skip
    assert found[("signal_to_noise", "cell_snr_median", 42)] > 1


@cache
def composed(experiment: str) -> dict[str, Any]:
    config = resolved(compose_config([f"experiment={experiment}"]))
    return {one.name: one for one in plan_stages(config["stages"], TRAINER, planner_sources({}))}


def test_the_paid_experiment_pays_for_everything_and_its_twin_is_kept_from_the_server() -> None:
    plan = composed("feddp_pald/paid")
    assert (plan["release"].settings.variant, plan["release"].price) == ("moments", (4.0, 1e-5))
    assert plan["release_nonprivate"].settings.variant == "moments"
    assert plan["mix_nonprivate"].sensitivity is Sensitivity.PRIVATE
    assert plan["latent_ddpm"].settings.whiten


def test_the_corrected_experiment_has_the_release_of_the_paper() -> None:
    paper, corrected = composed("feddp_pald"), composed("feddp_pald/noise_corrected")
    assert corrected["release"].settings == paper["release"].settings
    assert (paper["mix"].settings.subtract_noise, corrected["mix"].settings.subtract_noise) == (False, True)


def test_a_release_of_means_stays_what_it_was(tmp_path: Path, latents: Artifact) -> None:
    made = run_stage("release", settings("release"), {"latents": latents}, stage_context(tmp_path / "means"))
    assert isinstance(load_release(made), ShardRelease)
    assert set(made.load("release.safetensors")) == {
        "means", "variances", "counts", "noise_std", "clip_radius", "epsilon", "delta",
    }  # fmt: skip
    assert "parts" not in made.manifest["ledger"][0]
