"""Train on synthetic, test on real: what is trained on, where the threshold comes from, what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_stages import DIM, artifact, equal, run_stage, settings, stage_context, stock_trainer, values

from fedsynth.errors import DataError
from fedsynth.evaluation import balanced_accuracy_threshold, expected_calibration_error
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.tstr_mlp.datamodule import ArmLatentsData
from fedsynth.stages.tstr_mlp.module import TSTRClassifier
from fedsynth.stages.tstr_mlp.run import training_latents


def classify(folder: Path, train: Artifact, latents: Artifact, **changes: Any) -> Artifact:
    return run_stage(
        "tstr_mlp",
        settings("tstr_diffusion", **changes),
        {"train": train, "latents": latents},
        stage_context(folder, 12),
    )


def test_module_and_data_work_with_a_stock_trainer(tmp_path: Path, samples: Artifact) -> None:
    stored = samples.load("samples.safetensors")
    torch.manual_seed(0)
    module = TSTRClassifier(dim=DIM, hidden_dims=[16, 8], dropout=0.1, learning_rate=1e-2)
    trainer = stock_trainer(tmp_path, max_epochs=20)
    trainer.fit(module, ArmLatentsData(stored["latent"], stored["label"], batch_size=16, seed=0))
    module.eval()
    with torch.inference_mode():
        logit = module.network(stored["latent"])
    assert roc_auc_score(stored["label"], logit) > 0.95
    assert float(trainer.callback_metrics["train/loss"]) < 0.5


def test_one_class_is_refused(tmp_path: Path, latents: Artifact) -> None:
    one_class = {"latent": torch.randn(8, DIM), "label": torch.ones(8, dtype=torch.int64)}
    train = artifact(tmp_path / "one" / "output", {"samples.safetensors": one_class})
    with pytest.raises(DataError, match="'dp_diffusion' hold one class only; TSTR needs both"):
        classify(tmp_path / "tstr", train, latents)


def test_scores_and_thresholds_are_those_of_the_stored_probabilities(
    tmp_path: Path, samples: Artifact, latents: Artifact
) -> None:
    made = classify(tmp_path / "tstr", samples, latents)
    scores, reported = made.load("scores.safetensors"), values(made)
    assert {seed for _, _, seed in reported} == {1, 2}
    for row, seed in enumerate((1, 2)):
        probability = scores["test.probability"][row]
        wanted = roc_auc_score(scores["test.label"], probability)
        assert reported[("dp_diffusion", "test/auroc", seed)] == pytest.approx(wanted)
        threshold = balanced_accuracy_threshold(scores["val.probability"][row], scores["val.label"])
        assert reported[("dp_diffusion", "test/threshold", seed)] == threshold
    assert not torch.equal(scores["test.probability"][0], scores["test.probability"][1])


def test_probabilities_are_those_of_the_stored_logits(
    tmp_path: Path, samples: Artifact, latents: Artifact
) -> None:
    scores = classify(tmp_path / "tstr", samples, latents).load("scores.safetensors")
    for split in ("val", "test"):
        assert scores[f"{split}.logit"].dtype == torch.float64
        assert torch.equal(scores[f"{split}.logit"].sigmoid(), scores[f"{split}.probability"])


def test_confusion_counts_and_both_calibration_errors_are_reported(
    tmp_path: Path, samples: Artifact, latents: Artifact
) -> None:
    made = classify(tmp_path / "tstr", samples, latents)
    scores, reported = made.load("scores.safetensors"), values(made)
    label = scores["test.label"]
    for row, seed in enumerate((1, 2)):
        found = {metric: value for (_, metric, s), value in reported.items() if s == seed}
        called = scores["test.probability"][row] >= found["test/threshold"]
        counts = [int(((label == a) & (called == b)).sum()) for a, b in ((0, 0), (0, 1), (1, 0), (1, 1))]
        assert [found[f"test/{name}"] for name in ("tn", "fp", "fn", "tp")] == counts
        for name, bins in (("ece", 15), ("ece_10", 10)):
            wanted = expected_calibration_error(scores["test.probability"][row], label, bins)
            assert found[f"test/{name}"] == wanted


def test_test_labels_choose_nothing(tmp_path: Path, samples: Artifact, latents: Artifact) -> None:
    tensors = latents.load("latents.safetensors")
    tensors["test.label"] = 1 - tensors["test.label"]
    swapped = artifact(tmp_path / "swapped" / "output", {"latents.safetensors": tensors})
    first = classify(tmp_path / "a", samples, latents)
    second = classify(tmp_path / "b", samples, swapped)
    for key in ("threshold", "f1_threshold"):
        name = ("dp_diffusion", f"test/{key}", 1)
        assert values(first)[name] == values(second)[name]
    before, after = (made.load("scores.safetensors")["test.probability"] for made in (first, second))
    assert torch.equal(before, after)
    total = sum(values(made)[("dp_diffusion", "test/auroc", 1)] for made in (first, second))
    assert total == pytest.approx(1)


def test_training_ignores_real_latents_unless_they_are_the_arm(
    tmp_path: Path, samples: Artifact, latents: Artifact
) -> None:
    tensors = latents.load("latents.safetensors")
    tensors["train.latent"] = torch.zeros_like(tensors["train.latent"])
    changed = artifact(tmp_path / "changed" / "output", {"latents.safetensors": tensors})
    first = classify(tmp_path / "a", samples, latents).load("scores.safetensors")
    second = classify(tmp_path / "b", samples, changed).load("scores.safetensors")
    assert equal(first, second)
    third = classify(tmp_path / "c", latents, latents).load("scores.safetensors")
    assert not torch.equal(first["test.probability"], third["test.probability"])


def test_an_arm_is_all_real_training_latents_or_equally_many_samples_of_each_class(
    samples: Artifact, latents: Artifact
) -> None:
    real = latents.load("latents.safetensors")
    latent, label = training_latents(latents, 3)
    assert torch.equal(latent, real["train.latent"])
    assert torch.equal(label, real["train.label"])
    stored = samples.load("samples.safetensors")
    latent, label = training_latents(samples, 3)
    assert label.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(latent, torch.cat([stored["latent"][:3], stored["latent"][32:35]]))
    latent, label = training_latents(samples, None)  # all of them
    assert torch.equal(latent, stored["latent"])
    assert torch.equal(label, stored["label"])


def test_a_constant_dimension_does_not_break_standardization(tmp_path: Path, latents: Artifact) -> None:
    label = torch.arange(40) % 2
    latent = torch.randn(40, DIM, generator=torch.Generator().manual_seed(0)) + 3 * label[:, None]
    latent[:, 0] = 7.0
    train = artifact(
        tmp_path / "constant" / "output", {"samples.safetensors": {"latent": latent, "label": label}}
    )
    made = classify(tmp_path / "tstr", train, latents)
    assert bool(made.load("scores.safetensors")["test.probability"].isfinite().all())
