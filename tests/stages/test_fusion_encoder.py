"""The fusion encoder: local loss of Eq. (17), federated and centralized training, encoding, test scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_stages import artifact, equal, run_stage, settings, stage_context, stock_trainer, tiny_pairs, values

from fedsynth.data.paired import PairedClients
from fedsynth.models.encoders import ImageEncoder
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.fusion_encoder.datamodule import PairedClientsData
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.network import load_network, network_numbers, predict
from fedsynth.stages.system_arms import ARMS


def module(**changes: Any) -> FusionEncoder:
    torch.manual_seed(0)
    network = network_numbers(settings("fusion_encoder"))
    return FusionEncoder(
        **{
            "network": network, "modality_dropout": 0.25, "learning_rate": 1e-2, "weight_decay": 0.0,
            **changes,
        }
    )  # fmt: skip


def batch(pairs: PairedClients, num: int = 10) -> dict[str, torch.Tensor]:
    return {name: getattr(pairs.train, name)[:num] for name in ("image", "ecg", "label")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    """The stage run once on the tiny pairs: (clients, encoder)."""
    folder = tmp_path_factory.mktemp("fusion")
    clients = artifact(folder / "clients" / "output", {"pairs.safetensors": tiny_pairs().to_tensors()})
    encoder = run_stage(
        "fusion_encoder",
        settings("fusion_encoder"),
        {"clients": clients},
        stage_context(folder / "fusion_encoder", 3),
    )
    return clients, encoder


def test_training_loss_is_the_mean_cross_entropy(pairs: PairedClients) -> None:
    encoder = module(modality_dropout=0.0).eval()  # eval: no dropout, running statistics
    loss = encoder.training_step(batch(pairs), 0)["loss"]
    mask = torch.ones(10, 2, dtype=torch.bool)
    logits = (
        encoder.network(batch(pairs)["image"], batch(pairs)["ecg"], mask).logits.detach().double().numpy()
    )
    probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    by_hand = -np.log(probability[np.arange(10), batch(pairs)["label"]]).mean()
    assert float(loss.detach()) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.9])
def test_training_hides_modalities_and_validation_shows_both(
    tmp_path: Path, pairs: PairedClients, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = module(modality_dropout=dropout)
    seen: list[torch.Tensor] = []
    forward = encoder.network.forward
    monkeypatch.setattr(encoder, "log", lambda *args, **kwargs: None)
    encoder.trainer = stock_trainer(tmp_path)
    monkeypatch.setattr(
        encoder.network, "forward", lambda image, ecg, mask: seen.append(mask) or forward(image, ecg, mask)
    )
    encoder.training_step(batch(pairs, 30), 0)
    encoder.eval().validation_step(batch(pairs, 30), 0)
    training, validation = seen
    assert bool(validation.all())
    assert bool(training.any(1).all())
    assert bool(training.all()) == (dropout == 0)


def test_a_stock_trainer_trains_it_centrally_on_all_clients(tmp_path: Path, pairs: PairedClients) -> None:
    encoder, data = module(), PairedClientsData(pairs, batch_size=8, seed=0, centralized=True)
    trainer = stock_trainer(tmp_path, max_epochs=15)
    before = float(trainer.validate(encoder, data, verbose=False)[0]["val/loss"])
    trainer.fit(encoder, datamodule=data)
    assert trainer.global_step == 15 * 4  # 30 records: 8 + 8 + 8 + 6
    assert float(trainer.callback_metrics["val/loss"]) < before
    assert float(trainer.callback_metrics["val/auroc"]) > 0.5


def test_every_client_s_loader_holds_its_own_pairs_only(pairs: PairedClients) -> None:
    loaders = PairedClientsData(pairs, batch_size=64, seed=0).train_dataloader().iterables
    assert list(loaders) == [0, 1]
    for client, loader in loaders.items():
        (only,) = list(loader)
        own = pairs.train.image[pairs.train.client == client]
        assert sorted(only["image"].sum((1, 2, 3)).tolist()) == sorted(own.sum((1, 2, 3)).tolist())


def test_encode_equals_predict_in_evaluation_mode(tmp_path: Path, trained: tuple[Artifact, Artifact]) -> None:
    clients, encoder = trained
    made = run_stage(
        "encode",
        settings("encode", batch_size=7),
        {"clients": clients, "encoder": encoder},
        stage_context(tmp_path / "encode"),
    )
    pairs = PairedClients.from_tensors(clients.load("pairs.safetensors"))
    network = load_network(encoder)
    assert not network.training
    stored = made.load("latents.safetensors")
    for name in ("train", "val", "test"):
        split = getattr(pairs, name)
        expected = predict(network, split.image, split.ecg).latent
        torch.testing.assert_close(stored[f"{name}.latent"], expected, atol=1e-6, rtol=1e-5)
        assert torch.equal(stored[f"{name}.label"], split.label)
        assert torch.equal(stored[f"{name}.client"], split.client)
        assert torch.equal(stored[f"{name}.record_id"], split.image_id)
        # Alone as in company: no batch statistics, no dropout.
        alone = predict(network, split.image[3:4], split.ecg[3:4]).latent[0]
        torch.testing.assert_close(stored[f"{name}.latent"][3], alone, atol=1e-6, rtol=1e-5)


def test_encode_reports_mean_norms_by_class(tmp_path: Path, trained: tuple[Artifact, Artifact]) -> None:
    clients, encoder = trained
    made = run_stage(
        "encode", settings("encode"), {"clients": clients, "encoder": encoder}, stage_context(tmp_path / "e")
    )
    stored = made.load("latents.safetensors")
    norm = stored["test.latent"].norm(dim=1)[stored["test.label"] == 1].mean()
    assert values(made)[("positive", "test/mean_norm", 42)] == pytest.approx(float(norm))


def test_predict_restores_the_mode(pairs: PairedClients) -> None:
    network = module().network.train()
    predict(network, pairs.val.image, pairs.val.ecg)
    assert network.training


def test_the_best_round_is_kept_and_named(trained: tuple[Artifact, Artifact]) -> None:
    clients, encoder = trained
    history = json.loads((encoder.path / "history.json").read_text())
    losses = [row["val/loss"] for row in history]
    assert [row["epoch"] for row in history] == [0, 1, 2]
    assert encoder.manifest["notes"]["round"] == 1 + int(np.argmin(losses))
    pairs = PairedClients.from_tensors(clients.load("pairs.safetensors"))
    logits = predict(load_network(encoder), pairs.val.image, pairs.val.ecg).logits
    loss = torch.nn.functional.cross_entropy(logits, pairs.val.label)
    assert float(loss) == pytest.approx(min(losses), rel=1e-4)


def test_reported_scores_are_those_of_the_stored_probabilities(trained: tuple[Artifact, Artifact]) -> None:
    _, encoder = trained
    scores, reported = encoder.load("scores.safetensors"), values(encoder)
    assert torch.equal(scores["test.probability"], scores["both/test.probability"])
    for arm in ARMS:
        probability = scores[f"{arm}/test.probability"]
        wanted = roc_auc_score(scores["test.label"], probability)
        assert reported[(arm, "test/auroc", 42)] == pytest.approx(wanted)
        hits = (probability >= reported[(arm, "test/threshold", 42)]).long() == scores["test.label"]
        assert reported[(arm, "test/accuracy", 42)] == pytest.approx(float(hits.double().mean()))
    assert not torch.equal(scores["image_only/test.probability"], scores["ecg_only/test.probability"])


def test_gate_statistics_are_those_of_each_class(trained: tuple[Artifact, Artifact]) -> None:
    clients, encoder = trained
    pairs = PairedClients.from_tensors(clients.load("pairs.safetensors"))
    output = predict(load_network(encoder), pairs.test.image, pairs.test.ecg)
    for label, name in enumerate(("negative", "positive")):
        wanted = output.gates[pairs.test.label == label].mean(0)
        found = torch.tensor(encoder.manifest["notes"]["gates"][name]["gates"])
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


def test_training_starts_from_the_pretrained_image_encoder(tmp_path: Path, clients: Artifact) -> None:
    torch.manual_seed(5)
    pretrained = ImageEncoder([4, 8], 8).state_dict()
    xray = artifact(tmp_path / "xray" / "output", {"encoder.safetensors": pretrained})
    frozen = settings("fusion_encoder", learning_rate=1e-12, weight_decay=0.0)
    inputs = {"clients": clients, "xray_encoder": xray}
    made = run_stage("fusion_encoder", frozen, inputs, stage_context(tmp_path / "with"))
    bare = run_stage("fusion_encoder", frozen, {"clients": clients}, stage_context(tmp_path / "without"))
    name = "image_encoder.blocks.0.weight"
    wanted = pretrained["blocks.0.weight"]
    torch.testing.assert_close(made.load("model.safetensors")[name], wanted, atol=1e-6, rtol=0)
    assert not torch.allclose(bare.load("model.safetensors")[name], wanted, atol=1e-3)


def test_the_last_round_is_kept_when_asked(
    tmp_path: Path, clients: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.9, 0.2, 0.5] * 2)  # as if the second round were the best

    def validation_step(module: FusionEncoder, batch: Any, batch_index: int) -> None:
        module.log("val/loss", torch.tensor(next(losses)))

    monkeypatch.setattr(FusionEncoder, "validation_step", validation_step)
    made = {
        kind: run_stage(
            "fusion_encoder",
            settings("fusion_encoder", checkpoint=kind),
            {"clients": clients},
            stage_context(tmp_path / kind, 3),
        )
        for kind in ("best", "last")
    }
    assert {kind: stage.manifest["notes"]["round"] for kind, stage in made.items()} == {"best": 2, "last": 3}
    assert not equal(made["last"].load("model.safetensors"), made["best"].load("model.safetensors"))
