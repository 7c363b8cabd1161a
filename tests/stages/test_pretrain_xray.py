"""Pretraining on ChestMNIST: the loss of Eq. (10), its weights, and an encoder for the fusion network."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_stages import equal, run_stage, settings, stage_context, stock_trainer, values

from fedsynth.data.sources import DataSource, locate
from fedsynth.stages.fusion_encoder.network import build_network, network_numbers
from fedsynth.stages.pretrain_xray.datamodule import ChestMNISTData
from fedsynth.stages.pretrain_xray.module import XrayPretraining


def module(weight: list[float] | None = None) -> XrayPretraining:
    torch.manual_seed(0)
    return XrayPretraining(
        positive_weight=weight or [1.0, 3.0, 1.0],
        backbone="conv",
        image_channels=[4, 8],
        token_dim=8,
        normalization="batch",
        learning_rate=1e-2,
        weight_decay=0.0,
    )


def test_loss_is_the_weighted_cross_entropy_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = [0.5, 4.0, 30.0]
    network = module(weight)
    monkeypatch.setattr(network, "log", lambda *args, **kwargs: None)
    stream = torch.Generator().manual_seed(1)
    image = torch.randn(6, 1, 8, 8, generator=stream)
    label = torch.randint(2, (6, 3), generator=stream)
    loss = network.training_step({"image": image, "label": label}, 0)

    probability = network.network(image).detach().double().sigmoid().numpy()
    y, w = label.numpy(), np.array(weight)
    by_hand = -(w * y * np.log(probability) + (1 - y) * np.log(1 - probability)).mean()
    assert float(loss.detach()) == pytest.approx(by_hand, rel=1e-5)


def test_positive_weight_is_negatives_over_positives_in_training(chest: DataSource) -> None:
    label = np.load(chest.path)["train_labels"]
    weight = ChestMNISTData(chest.path, batch_size=8, seed=0).positive_weight()
    for column in (0, 1):
        positives = int(label[:, column].sum())
        assert weight[column] == pytest.approx((len(label) - positives) / positives)
    assert weight[0] != weight[1]


def test_a_label_without_positives_has_weight_one(chest: DataSource) -> None:
    assert np.load(chest.path)["train_labels"][:, 2].sum() == 0
    assert ChestMNISTData(chest.path, batch_size=8, seed=0).positive_weight()[2] == 1.0


def test_every_split_is_standardized_by_the_training_images(chest: DataSource) -> None:
    data = ChestMNISTData(chest.path, batch_size=8, seed=0)
    stored = np.load(chest.path)
    train = stored["train_images"].astype(np.float64) / 255
    assert float(data.tensors["train"]["image"].mean()) == pytest.approx(0, abs=1e-5)
    assert float(data.tensors["train"]["image"].std(correction=0)) == pytest.approx(1, abs=1e-5)
    wanted = (stored["test_images"] / 255 - train.mean()) / train.std()
    np.testing.assert_allclose(data.tensors["test"]["image"][:, 0], wanted, atol=1e-5)


def test_module_and_data_work_with_a_stock_trainer(tmp_path: Path, chest: DataSource) -> None:
    data = ChestMNISTData(chest.path, batch_size=16, seed=0)
    network = module(data.positive_weight())
    trainer = stock_trainer(tmp_path, max_epochs=8)
    losses = [float(trainer.validate(network, data, verbose=False)[0]["val/loss"])]
    trainer.fit(network, datamodule=data)
    assert trainer.global_step == 8 * 3
    losses.append(float(trainer.callback_metrics["val/loss"]))
    assert losses[1] < losses[0]
    assert 0 < float(trainer.callback_metrics["val/auroc"]) <= 1


def test_the_stored_encoder_fits_the_fusion_network(tmp_path: Path, chest: DataSource) -> None:
    made = run_stage(
        "pretrain_xray",
        settings("pretrain_xray"),
        {},
        stage_context(tmp_path / "pretrain", 2, sources={"chestmnist": chest}),
    )
    fusion = build_network(network_numbers(settings("fusion_encoder")))
    fusion.image_encoder.load_state_dict(made.load("encoder.safetensors"))
    assert equal(fusion.image_encoder.state_dict(), made.load("encoder.safetensors"))
    assert [row["epoch"] for row in json.loads((made.path / "history.json").read_text())] == [0, 1]


def test_test_scores_are_those_of_scikit_learn_by_label(
    tmp_path: Path, chest: DataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[XrayPretraining] = []
    monkeypatch.setattr(
        "fedsynth.stages.pretrain_xray.run.XrayPretraining",
        lambda **arguments: trained.append(XrayPretraining(**arguments)) or trained[0],
    )
    context = stage_context(tmp_path / "pretrain", sources={"chestmnist": chest})
    reported = values(run_stage("pretrain_xray", settings("pretrain_xray"), {}, context))
    test = ChestMNISTData(chest.path, batch_size=8, seed=0).tensors["test"]
    with torch.inference_mode():
        logits = trained[0].network(test["image"])
    wanted = [roc_auc_score(test["label"][:, column], logits[:, column]) for column in range(3)]
    found = [reported[(f"label_{column}", "test/auroc", 42)] for column in range(3)]
    assert found == pytest.approx(wanted, abs=1e-6)
    assert reported[("mean", "test/auroc", 42)] == pytest.approx(np.mean(wanted), abs=1e-6)


def test_a_label_of_one_class_has_no_score_and_leaves_the_mean_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = random.integers(0, 256, (20, 8, 8), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.stack([np.arange(20) % 2, np.zeros(20)], 1).astype(np.uint8)
    np.savez(tmp_path / "chestmnist.npz", **arrays)
    source = locate("chestmnist", tmp_path, download=False)
    context = stage_context(tmp_path / "pretrain", sources={"chestmnist": source})
    made = run_stage("pretrain_xray", settings("pretrain_xray"), {}, context)
    reported = values(made)
    assert math.isnan(reported[("label_1", "test/auroc", 42)])
    assert reported[("mean", "test/auroc", 42)] == reported[("label_0", "test/auroc", 42)]
    assert made.manifest["notes"]["labels_without_both_classes"] == ["label_1"]
