"""Differences of two systems: what they must be where the answer is known, and what cannot be compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_stages import run_stage, stage_context, values
from tiny_systems import (
    analysis_settings,
    encoder_system,
    labels,
    noisy_logits,
    pair_of_seeds,
    planned,
    tstr_system,
)

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.evaluation import classification_metrics, holm_adjust
from fedsynth.pipeline.artifacts import Artifact

LABEL = {"val": labels(20), "test": labels(60)}


def contrast(folder: Path, candidate: Artifact, baseline: Artifact, **changes: Any) -> Artifact:
    return run_stage(
        "contrast",
        analysis_settings("contrast", **{"num_bootstrap": 200, **changes}),
        {"candidate": candidate, "baseline": baseline},
        stage_context(folder / "contrast"),
    )


@pytest.fixture
def encoder(tmp_path: Path) -> Artifact:
    """An encoder whose arm ``both`` is better than ``image_only``."""
    arms = {"both": (1, 1.0), "image_only": (7, 0.2)}
    logits = {
        arm: {
            split: noisy_logits(label, seed) * weight + noisy_logits(1 - label, seed + 1) * (1 - weight) / 2
            for split, label in LABEL.items()
        }
        for arm, (seed, weight) in arms.items()
    }
    return encoder_system(tmp_path / "encoder", logits, LABEL)


@pytest.fixture
def classifier(tmp_path: Path) -> Artifact:
    return tstr_system(tmp_path / "tstr", pair_of_seeds(LABEL, 20), LABEL, threshold=0.7)


def numbers(made: Artifact, kind: str) -> dict[str, float]:
    return {
        metric.removeprefix(f"{kind}/"): value
        for (_, metric, _), value in values(made).items()
        if metric.startswith(f"{kind}/")
    }


def test_a_system_differs_from_itself_in_nothing(tmp_path: Path, encoder: Artifact) -> None:
    made = contrast(tmp_path, encoder, encoder, candidate_arm="both", baseline_arm="both")
    assert set(numbers(made, "difference").values()) == {0.0}
    assert set(numbers(made, "p_holm").values()) == {1.0}
    assert {"auroc", "auprc", "f1", "mcc", "npv", "brier", "ece"} <= set(numbers(made, "difference"))


def test_differences_are_those_of_the_metrics_at_each_systems_own_threshold(
    tmp_path: Path, encoder: Artifact, classifier: Artifact
) -> None:
    made = contrast(tmp_path, encoder, classifier, candidate_arm="both")
    one = encoder.load("scores.safetensors")["both/test.probability"]
    other = classifier.load("scores.safetensors")["test.probability"][0]  # the first classifier seed
    found = numbers(made, "difference")
    wanted = roc_auc_score(LABEL["test"], one) - roc_auc_score(LABEL["test"], other)
    assert found["auroc"] == pytest.approx(wanted)
    first = classification_metrics(one, LABEL["test"], 0.5)
    second = classification_metrics(other, LABEL["test"], 0.7)
    for name, value in found.items():
        assert value == pytest.approx(first[name] - second[name]), name
    assert made.manifest["notes"]["thresholds"] == {"candidate": 0.5, "baseline": 0.7}
    assert made.manifest["notes"]["baseline"] == "tstr (arm, seed 1)"


def test_swapping_the_systems_turns_every_difference_around(
    tmp_path: Path, encoder: Artifact, classifier: Artifact
) -> None:
    there = contrast(tmp_path / "a", encoder, classifier, candidate_arm="both")
    back = contrast(tmp_path / "b", classifier, encoder, baseline_arm="both")
    for row, other in zip(there.manifest["metrics"], back.manifest["metrics"], strict=True):
        sign = -1 if row["metric"].startswith("difference") else 1
        assert other["value"] == pytest.approx(sign * row["value"], abs=1e-12)
        if sign == -1:
            assert (other["ci_low"], other["ci_high"]) == pytest.approx((-row["ci_high"], -row["ci_low"]))


def test_holm_adjusts_over_the_metrics_of_the_contrast(tmp_path: Path, encoder: Artifact) -> None:
    made = contrast(tmp_path, encoder, encoder, candidate_arm="both", baseline_arm="image_only")
    raw, adjusted = numbers(made, "p_value"), numbers(made, "p_holm")
    assert adjusted == holm_adjust(raw)
    assert numbers(made, "difference")["auroc"] > 0
    rows = {row["metric"]: row for row in made.manifest["metrics"]}
    for name in raw:
        row = rows[f"difference/{name}"]
        assert row["ci_low"] <= row["value"] <= row["ci_high"]


def test_an_undefined_metric_stays_out_of_the_family(tmp_path: Path) -> None:
    # Nothing is called negative: no negative predictive value.
    logits = {split: noisy_logits(label, 3) for split, label in LABEL.items()}
    keen = encoder_system(tmp_path / "keen", {"both": logits}, LABEL, threshold=0.0)
    plain = encoder_system(tmp_path / "plain", {"both": logits}, LABEL)
    made = contrast(tmp_path, keen, plain, candidate_arm="both", baseline_arm="both")
    for kind in ("difference", "p_value", "p_holm"):
        assert math.isnan(numbers(made, kind)["npv"])
    defined = {name: p for name, p in numbers(made, "p_value").items() if name != "npv"}
    assert {name: p for name, p in numbers(made, "p_holm").items() if name != "npv"} == holm_adjust(defined)
    assert made.manifest["notes"]["num_undefined_replicates"]["npv"] == 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"candidate_arm must be one of both, image_only, the arms of encoder, got None"),
        ({"candidate_arm": "ecg_only"}, r"candidate_arm must be one of both, image_only"),
        ({"candidate_arm": "both", "baseline_arm": "both"}, r"baseline_arm must be null for tstr"),
    ],
)
def test_an_arm_the_system_does_not_have_is_refused(
    tmp_path: Path, encoder: Artifact, classifier: Artifact, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.contrast\.{message}"):
        contrast(tmp_path, encoder, classifier, **changes)


@pytest.mark.parametrize(
    ("test_label", "message"),
    [
        (labels(58), "60 and 58 records"),
        (torch.cat([labels(59), torch.tensor([0])]), "record 59 is labeled 1 and 0"),
    ],
)
def test_systems_of_different_test_records_are_refused(
    tmp_path: Path, encoder: Artifact, test_label: torch.Tensor, message: str
) -> None:
    label = {**LABEL, "test": test_label}
    other = tstr_system(tmp_path / "other", pair_of_seeds(label, 5), label)
    with pytest.raises(ConfigError, match=f"not scored on the same test records: {message}"):
        contrast(tmp_path, encoder, other, candidate_arm="both")


def test_a_system_without_a_threshold_is_refused(tmp_path: Path, classifier: Artifact) -> None:
    classifier.manifest["metrics"].pop()
    with pytest.raises(ArtifactError, match=r"reports no test/threshold of arm 'arm' for the seeds \[2\]"):
        contrast(tmp_path, classifier, classifier)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("candidate_arm", "neither"),
        ("num_bootstrap", 0),
        ("inputs.baseline", "encode"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(f"contrast.{key}", value)
    assert str(caught.value).startswith(f"stages.contrast.{key} must ")
