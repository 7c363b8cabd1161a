"""Temperature scaling: recovers a planted temperature, from logits, on validation records only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import brier_score_loss, log_loss
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
from fedsynth.pipeline.artifacts import Artifact

LABEL = {"val": labels(40), "test": labels(60)}


def scaled(folder: Path, system: Artifact, **changes: Any) -> Artifact:
    return run_stage(
        "temperature_scaling",
        analysis_settings("temperature_scaling", **changes),
        {"system": system},
        stage_context(folder / "temperature"),
    )


def encoder(folder: Path, scale: float = 1.0) -> Artifact:
    logits = {split: noisy_logits(label, 1, scale=scale) for split, label in LABEL.items()}
    return encoder_system(folder, {"both": logits}, LABEL)


def test_logits_times_a_factor_need_a_temperature_times_that_factor(tmp_path: Path) -> None:
    name = ("scaled", "temperature", 42)
    plain = values(scaled(tmp_path / "a", encoder(tmp_path / "plain")))
    harder = values(scaled(tmp_path / "b", encoder(tmp_path / "harder", scale=3.0)))
    assert harder[name] == pytest.approx(3 * plain[name], rel=1e-5)
    # Scaled, the two are the same system.
    for metric in ("test/brier", "test/ece", "test/ece_10", "test/nll"):
        assert harder[("scaled", metric, 42)] == pytest.approx(plain[("scaled", metric, 42)], rel=1e-4)


def test_numbers_are_those_of_scipy_and_scikit_learn(tmp_path: Path) -> None:
    made = scaled(tmp_path, encoder(tmp_path / "encoder", scale=2.0))
    logit = {split: noisy_logits(label, 1, scale=2.0) for split, label in LABEL.items()}
    best = minimize_scalar(
        lambda t: log_loss(LABEL["val"], (logit["val"] / t).sigmoid()), bounds=(0.1, 10), method="bounded"
    )
    found = values(made)
    assert found[("scaled", "temperature", 42)] == pytest.approx(best.x, rel=1e-3)
    for arm, t in (("unscaled", 1.0), ("scaled", found[("scaled", "temperature", 42)])):
        for split in ("val", "test"):
            probability = (logit[split] / t).sigmoid()
            assert found[(arm, f"{split}/brier", 42)] == pytest.approx(
                brier_score_loss(LABEL[split], probability)
            )
            assert found[(arm, f"{split}/nll", 42)] == pytest.approx(log_loss(LABEL[split], probability))
        stored = made.load("scores.safetensors")[f"{arm}/test.probability"]
        assert torch.allclose(stored, probability.unsqueeze(0))
    assert found[("scaled", "val/nll", 42)] <= found[("unscaled", "val/nll", 42)]


def test_saturated_probabilities_are_no_obstacle(tmp_path: Path) -> None:
    # sigmoid(80) is 1 in float64: only the stored logits still tell these records apart.
    made = scaled(tmp_path, encoder(tmp_path / "encoder", scale=40.0))
    plain = values(scaled(tmp_path / "plain", encoder(tmp_path / "other")))
    assert values(made)[("scaled", "temperature", 42)] == pytest.approx(
        40 * plain[("scaled", "temperature", 42)], rel=1e-4
    )


def test_every_classifier_seed_has_a_temperature_of_its_own(tmp_path: Path) -> None:
    system = tstr_system(tmp_path / "tstr", pair_of_seeds(LABEL, 3), LABEL)
    made = scaled(tmp_path, system, arm=None)
    found = values(made)
    assert {seed for _, _, seed in found} == {1, 2}
    assert found[("scaled", "temperature", 1)] != found[("scaled", "temperature", 2)]
    assert made.load("scores.safetensors")["scaled/test.probability"].shape == (2, 60)


def test_test_labels_choose_no_temperature(tmp_path: Path) -> None:
    logits = {split: noisy_logits(label, 1) for split, label in LABEL.items()}
    swapped = encoder_system(tmp_path / "s", {"both": logits}, {**LABEL, "test": 1 - LABEL["test"]})
    name = ("scaled", "temperature", 42)
    before = values(scaled(tmp_path / "a", encoder(tmp_path / "e")))[name]
    assert values(scaled(tmp_path / "b", swapped))[name] == before


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_validation_records_without_an_optimal_temperature_are_named(tmp_path: Path, sign: float) -> None:
    # All on the right side, or all on the wrong one.
    logits = {split: sign * (2.0 * label - 1).double() for split, label in LABEL.items()}
    made = scaled(tmp_path, encoder_system(tmp_path / "e", {"both": logits}, LABEL))
    assert made.manifest["notes"]["no_optimal_temperature"] == ["e (both, seed 42)"]
    found = values(made)[("scaled", "temperature", 42)]
    assert found < 0.1 if sign > 0 else found > 10
    plain = scaled(tmp_path / "b", encoder(tmp_path / "f"))
    assert "no_optimal_temperature" not in plain.manifest["notes"]


def test_scores_without_logits_are_refused(tmp_path: Path) -> None:
    # What a probability has lost cannot be had back from it.
    from safetensors.torch import load_file, save_file

    system = encoder(tmp_path / "encoder")
    path = system.path / "scores.safetensors"
    save_file({name: t for name, t in load_file(path).items() if not name.endswith(".logit")}, path)
    with pytest.raises(ArtifactError, match=r"encoder \(both, seed 42\) has no val\.logit"):
        scaled(tmp_path, system)


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"stages\.temperature\.arm must be one of both, the arms of e, got 'ecg"
    ):
        scaled(tmp_path, encoder(tmp_path / "e"), arm="ecg_only")
    with pytest.raises(ConfigError, match=r"stages\.temperature_scaling\.inputs\.system must "):
        planned("temperature_scaling.inputs.system", "mix")
