"""The failure analysis as a stage: whose scores, which records, one row a classifier seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import artifact, run_stage, stage_context, tiny_latents, values
from tiny_systems import analysis_settings, pair_of_seeds, planned, tstr_system

from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact

LABEL = {split: tiny_latents()[f"{split}.label"] for split in ("val", "test")}


def analyzed(
    folder: Path, latents: Artifact, real: Artifact, synthetic: Artifact, **changes: Any
) -> Artifact:
    return run_stage(
        "failure_analysis",
        analysis_settings("failure_analysis", **changes),
        {"latents": latents, "real": real, "synthetic": synthetic},
        stage_context(folder / "failure"),
    )


@pytest.fixture
def real(tmp_path: Path) -> Artifact:
    return tstr_system(tmp_path / "real", pair_of_seeds(LABEL, 10), LABEL)


def test_collapsed_scores_show_as_such(tmp_path: Path, latents: Artifact, real: Artifact) -> None:
    flat = {split: torch.full((2, len(label)), 2.6294, dtype=torch.float64) for split, label in LABEL.items()}
    made = analyzed(tmp_path, latents, real, tstr_system(tmp_path / "flat", flat, LABEL))
    found = values(made)
    num_positives = int(LABEL["test"].sum())
    for seed in (1, 2):
        arm = "positives_synthetic"
        assert found[(arm, "score_range", seed)] == 0
        assert found[(arm, "logit_mean", seed)] == pytest.approx(2.6294)
        assert found[(arm, "logit_std", seed)] == pytest.approx(0, abs=1e-12)
        assert found[(arm, "top_value", seed)] == pytest.approx(0.9327)
        assert found[(arm, "top_value_count", seed)] == num_positives
        for relation in ("centroid_margin", "positive_share"):
            assert math.isnan(found[("correlation", relation, seed)])
    assert found[("positives_real", "score_range", 1)] > 0
    assert made.manifest["notes"]["frequent_values"]["synthetic"]["1"] == [
        [pytest.approx(0.9327), num_positives]
    ]


def test_hard_negatives_are_scored_higher_by_the_synthetic_classifier(
    tmp_path: Path, latents: Artifact, real: Artifact
) -> None:
    # One negative is called positive by the synthetic classifier alone.
    logits = real.load("scores.safetensors")
    victim = int((LABEL["test"] == 0).nonzero()[3, 0])
    fooled = {split: logits[f"{split}.logit"].clone() for split in LABEL}
    fooled["test"][:, victim] = 9.0
    made = analyzed(tmp_path, latents, real, tstr_system(tmp_path / "fooled", fooled, LABEL))
    assert made.load("failure.safetensors")["hard_negatives"].tolist() == [[victim], [victim]]
    found = values(made)
    for row, seed in enumerate((1, 2)):
        q = float(logits["test.probability"][row, victim])
        p = 1 / (1 + math.exp(-9))
        assert found[("hard_negatives", "count", seed)] == 1
        assert found[("hard_negatives", "mean_synthetic_score", seed)] == pytest.approx(p)
        assert found[("hard_negatives", "mean_real_score", seed)] == pytest.approx(q)
        assert found[("hard_negatives", "gap", seed)] == pytest.approx(p - q)


def test_scores_that_follow_the_margin_correlate_with_it(
    tmp_path: Path, latents: Artifact, real: Artifact
) -> None:
    tensors = latents.load("latents.safetensors")
    train, label = tensors["train.latent"], tensors["train.label"]
    away = {v: (tensors["test.latent"] - train[label == v].mean(0)).norm(dim=1) for v in (0, 1)}
    margin = (away[1] - away[0]).double()
    p = 0.5 - 0.4 * margin / margin.abs().max()
    logits = {"val": torch.zeros(2, len(LABEL["val"]), dtype=torch.float64), "test": p.logit().expand(2, -1)}
    made = analyzed(tmp_path, latents, real, tstr_system(tmp_path / "geometric", logits, LABEL))
    for arm in ("correlation", "correlation_negatives"):
        assert values(made)[(arm, "centroid_margin", 1)] == pytest.approx(-1, abs=1e-6)
    stored = made.load("failure.safetensors")
    assert torch.allclose(stored["centroid_margin"], margin, atol=1e-5)


def test_classes_far_apart_have_no_borderline_negatives(tmp_path: Path, real: Artifact) -> None:
    tensors = tiny_latents()
    for split in ("train", "test"):
        tensors[f"{split}.latent"] += 100 * tensors[f"{split}.label"].unsqueeze(1)
    far = artifact(tmp_path / "far" / "output", {"latents.safetensors": tensors})
    made = analyzed(tmp_path, far, real, real, num_neighbors=5)
    found = values(made)
    assert found[("borderline_negatives", "count", 1)] == 0
    assert math.isnan(found[("borderline_negatives", "gap", 1)])
    share = made.load("failure.safetensors")["positive_share"]
    assert torch.equal(share, LABEL["test"].double())


def test_classifiers_that_do_not_belong_together_are_refused(
    tmp_path: Path, latents: Artifact, real: Artifact
) -> None:
    other = tstr_system(tmp_path / "other", pair_of_seeds(LABEL, 10), LABEL, seeds=(1, 3))
    with pytest.raises(ConfigError, match=r"same seeds, got \[1, 2\] and \[1, 3\]"):
        analyzed(tmp_path / "a", latents, real, other)
    label = {**LABEL, "test": 1 - LABEL["test"]}
    turned = tstr_system(tmp_path / "turned", pair_of_seeds(label, 10), label)
    with pytest.raises(ConfigError, match="not scored on the same test records"):
        analyzed(tmp_path / "b", latents, real, turned)
    with pytest.raises(ConfigError, match=r"inputs\.latents holds other test records"):
        analyzed(tmp_path / "c", latents, turned, turned)


def test_too_many_neighbors_and_a_missing_class_are_refused(
    tmp_path: Path, latents: Artifact, real: Artifact
) -> None:
    with pytest.raises(ConfigError, match=r"failure\.num_neighbors must be at most 48, .* got 49"):
        analyzed(tmp_path / "a", latents, real, real, num_neighbors=49)
    tensors = {**tiny_latents(), "train.label": torch.ones(48, dtype=torch.int64)}
    one_class = artifact(tmp_path / "one" / "output", {"latents.safetensors": tensors})
    with pytest.raises(DataError, match="one class only"):
        analyzed(tmp_path / "b", one_class, real, real)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("borderline_low", 0.9),
        ("hard_negative_fraction", 0.0),
        ("inputs.real", "fusion_encoder"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(f"failure_analysis.{key}", value)
    assert str(caught.value).startswith(f"stages.failure_analysis.{key} must ")
