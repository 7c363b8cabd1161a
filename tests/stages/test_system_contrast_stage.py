"""Several systems against one: pairing, the family of the adjustment, and what cannot be compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_classifier import StoredAnswers, answers, planned, planned_stage
from tiny_stages import artifact, found, run_stage, stage_context, values

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.evaluation import holm_adjust
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome
from fedsynth.stages.multimodal.trained import SplitOutputs
from fedsynth.stages.privacy_performance import run as module

SETTINGS = {"seed": 42, "num_bootstrap": 300}


class Systems:
    """Scores and contrasts stored answers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch, self.number = folder, monkeypatch, 0

    def score(self, arm: str, given: dict[str, SplitOutputs], **changes: Any) -> Artifact:
        self.monkeypatch.setattr(module, "open_classifier", lambda encoder, clients: StoredAnswers(given))
        settings = type(planned()["score"])(**{**vars(planned()["score"]), **SETTINGS, "arm": arm, **changes})
        self.number += 1
        folder = self.folder / f"{arm}-{self.number}"
        inputs = {name: artifact(folder / name / "output", {}) for name in ("clients", "encoder")}
        return run_stage("privacy_performance", settings, inputs, stage_context(folder / "score"))

    def contrast(self, candidate: Artifact, *baselines: Artifact) -> Artifact:
        roles = ["baseline", *(f"baseline_{number}" for number in range(2, 1 + len(baselines)))]
        settings = type(planned()["contrast"])(**SETTINGS)
        inputs = {"candidate": candidate, **dict(zip(roles, baselines, strict=True))}
        self.number += 1
        return run_stage(
            "system_contrast", settings, inputs, stage_context(self.folder / f"contrast-{self.number}")
        )


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systems:
    return Systems(tmp_path, monkeypatch)


def test_a_system_differs_in_nothing_from_one_with_its_answers(systems: Systems) -> None:
    made = systems.contrast(systems.score("fedmpa", answers()), systems.score("fedavg", answers()))
    for (arm, metric, _), value in values(made).items():
        assert arm == "fedavg"
        assert value == (0.0 if metric.startswith("difference/") else 1.0)


def test_differences_are_those_of_the_two_stages(systems: Systems) -> None:
    fedmpa, others = systems.score("fedmpa", answers(seed=1)), {}
    for seed, arm in ((2, "fedavg"), (3, "fedproto")):
        others[arm] = systems.score(arm, answers(seed=seed, models=1 + (arm == "fedproto")))
        # Other outputs, but the same participants.
    made = systems.contrast(fedmpa, *others.values())
    own = {metric.removeprefix("test/"): value for (_, metric, _), value in values(fedmpa).items()}
    for arm, other in others.items():
        theirs = {metric.removeprefix("test/"): value for (_, metric, _), value in values(other).items()}
        got = {
            metric.removeprefix("difference/"): value
            for (name, metric, _), value in values(made).items()
            if name == arm and metric.startswith("difference/")
        }
        assert {"uar", "pps", "privacy_score", "attack_auroc", "attack_auroc_val", "f1"} <= set(got)
        for metric, value in got.items():
            assert value == pytest.approx(own[metric] - theirs[metric], abs=1e-12), (arm, metric)


def test_intervals_of_paired_systems_are_narrower_than_those_of_each(systems: Systems) -> None:
    given, nearly = answers(seed=4), answers(seed=4)
    nearly["test"].logits[0, 0] *= -1  # one record is classified otherwise
    one, other = systems.score("fedmpa", given), systems.score("fedavg", nearly)
    rows = {row["metric"]: row for row in systems.contrast(one, other).manifest["metrics"]}
    alone = {row["metric"]: row for row in one.manifest["metrics"]}["test/uar"]
    difference = rows["difference/uar"]
    assert difference["ci_high"] - difference["ci_low"] < alone["ci_high"] - alone["ci_low"]
    assert difference["ci_low"] <= difference["value"] <= difference["ci_high"]


def test_holm_covers_both_headline_metrics_of_all_baselines(systems: Systems) -> None:
    baselines = [systems.score(f"arm{seed}", answers(seed=seed, scale=0.3)) for seed in (5, 6, 7)]
    found_values = values(systems.contrast(systems.score("fedmpa", answers(seed=8)), *baselines))
    raw = {
        f"{arm} {metric.removeprefix('p_value/')}": value
        for (arm, metric, _), value in found_values.items()
        if metric in ("p_value/uar", "p_value/pps")
    }
    adjusted = {
        f"{arm} {metric.removeprefix('p_holm/')}": value
        for (arm, metric, _), value in found_values.items()
        if metric.startswith("p_holm/")
    }
    assert len(raw) == 6
    assert adjusted == holm_adjust(raw)


def test_an_undefined_metric_stays_out_of_the_family(systems: Systems) -> None:
    given = answers(seed=9)
    for one in given.values():
        one.logits[..., 1] = -9.0  # nothing is called positive: no precision
        one.logits[..., 0] = torch.randn(one.logits.shape[:2], generator=torch.Generator().manual_seed(0))
    made = systems.contrast(systems.score("fedmpa", given), systems.score("fedavg", answers()))
    got = {metric: value for (_, metric, _), value in values(made).items()}
    assert math.isnan(got["difference/precision"])
    assert math.isnan(got["p_value/precision"])
    assert 0 <= got["p_holm/uar"] <= 1
    assert made.manifest["notes"]["num_undefined_replicates"]["fedavg"]["precision"] == 300


def test_the_rerouted_share_is_compared_only_where_both_have_one(systems: Systems) -> None:
    made = systems.contrast(systems.score("fedmpa", answers()), systems.score("fedavg", answers(seed=1)))
    assert "difference/rerouted_share" not in {metric for _, metric, _ in values(made)}


def test_systems_of_other_participants_are_refused(systems: Systems) -> None:
    given = answers()
    given["test"].group.add_(1)
    given["test"].label.copy_(given["test"].group % 2)
    with pytest.raises(ConfigError, match=r"cannot be compared: the test participants of 'fedavg'"):
        systems.contrast(systems.score("fedmpa", answers()), systems.score("fedavg", given))


def test_damaged_scores_are_refused(systems: Systems, tmp_path: Path) -> None:
    good = systems.score("fedmpa", answers())
    tensors = good.load("scores.safetensors")
    del tensors["val.label"]
    bad = artifact(tmp_path / "bad" / "output", {"scores.safetensors": tensors})
    bad = found(bad.path, {"arm": "fedavg"}, Outcome())
    with pytest.raises(ArtifactError, match=r"bad has no usable scores\.safetensors: 'val\.label'"):
        systems.contrast(good, bad)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"other__arm": "one"}, r"inputs\.baseline must name a system with an arm of its own, got other"),
        (
            {"contrast__inputs__baseline": "score"},
            r"inputs\.baseline must name a system with an arm of its own",
        ),
        (
            {"contrast__inputs__baseline": "clients"},
            r"inputs\.baseline must name a stage of kind privacy_perf",
        ),
        ({"contrast__inputs__baseline_17": "other"}, r"inputs\.baseline_17 is not a known key"),
        ({"contrast__num_bootstrap": 0}, r"num_bootstrap must be"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(
    entries: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.contrast\.{message}"):
        planned(**entries)


def test_systems_of_other_records_are_refused_before_anything_runs() -> None:
    encoder = planned_stage("fusion_encoder")
    encoder["inputs"]["clients"] = "more"
    more = {"more": planned_stage("clients"), "encoder": encoder}
    with pytest.raises(ConfigError, match=r"baseline must name a system of clients, .* got other of more"):
        planned(**more, other__inputs__clients="more", other__inputs__encoder="encoder")


def test_further_baselines_have_roles_of_their_own() -> None:
    third = {**planned_stage("other"), "arm": "three"}
    assert planned(third=third, contrast__inputs__baseline_2="third")["third"].arm == "three"
