"""Rounds of a multimodal classifier: class weights, validation of personal models, the kept round, resuming."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, recall_score, roc_auc_score
from tiny_federations import NOISE, history, killed_at, of_client, train_system
from tiny_stages import artifact, equal, run_stage, settings, stage_context, tiny_pairs
from torch import Tensor

from fedsynth.data.paired import PairedClients
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.fusion_encoder.network import load_network, predict
from fedsynth.stages.multimodal import module as multimodal_module
from fedsynth.stages.multimodal.class_counts import count_classes
from fedsynth.stages.multimodal.module import MultimodalClassifier

FILES = ("model.safetensors", "prototypes.safetensors", "uploads.safetensors", "client_models.safetensors")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("training") / "clients" / "output"
    return artifact(folder, {"pairs.safetensors": tiny_pairs().to_tensors()})


def same(first: Artifact, second: Artifact) -> None:
    """Every file, to the bit."""
    assert first.manifest["files"].keys() == second.manifest["files"].keys()
    for file in first.manifest["files"]:
        if file.endswith(".safetensors"):
            assert equal(first.load(file), second.load(file)), file
    assert history(first) == history(second)


# -- class weights --------------------------------------------------------------------------------------------


@pytest.fixture
def uneven(tmp_path: Path) -> Artifact:
    """The tiny pairs with 12 and 6 records of the classes at client 0, 9 and 3 at client 1."""
    tensors = tiny_pairs().to_tensors()
    positive = torch.cat([torch.arange(18) % 3 == 0, torch.arange(12) % 4 == 0])
    return artifact(
        tmp_path / "uneven" / "output", {"pairs.safetensors": {**tensors, "train/label": positive.long()}}
    )


def recorded_weights(
    folder: Path, clients: Artifact, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> list[tuple[list[float], list[int]]]:
    """Class weights and labels of every training step, in order."""
    seen: list[tuple[list[float], list[int]]] = []
    real = multimodal_module.weighted_cross_entropy

    def recorded(logits: Tensor, label: Tensor, class_weight: Tensor) -> Tensor:
        seen.append((class_weight.tolist(), label.tolist()))
        return real(logits, label, class_weight)

    monkeypatch.setattr(multimodal_module, "weighted_cross_entropy", recorded)
    asked = settings("fusion_encoder", local_epochs=1, **changes)
    run_stage("fusion_encoder", asked, {"clients": clients}, stage_context(folder, 1))
    return seen


def test_every_client_weighs_its_loss_by_its_own_class_counts(
    tmp_path: Path, uneven: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = recorded_weights(tmp_path / "stage", uneven, monkeypatch, class_weighting="client")
    first, second = [18 / 24, 18 / 12], [12 / 18, 12 / 6]
    assert len({tuple(weight) for weight, _ in seen}) == 2
    for weight, num, positives in ((first, 18, 6), (second, 12, 3)):
        label = [one for found, labels in seen if found == pytest.approx(weight) for one in labels]
        assert (len(label), sum(label)) == (num, positives), "one local epoch of the client"


def test_pooled_records_are_weighed_by_the_counts_of_all(
    tmp_path: Path, uneven: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = recorded_weights(
        tmp_path / "stage", uneven, monkeypatch, class_weighting="client", training="centralized"
    )
    assert seen
    for weight, _ in seen:
        assert weight == pytest.approx([30 / 42, 30 / 18], rel=1e-6)


def test_without_weighting_nobody_weighs(
    tmp_path: Path, uneven: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recorded_weights(tmp_path / "stage", uneven, monkeypatch, class_weighting="none") == []


def test_classes_are_counted_by_client_and_in_all() -> None:
    label, client = torch.tensor([0, 1, 1, 1, 0]), torch.tensor([0, 0, 2, 2, 2])
    counts = {name: count.tolist() for name, count in count_classes(label, client).items()}
    assert counts == {None: [2, 3], 0: [1, 1], 2: [1, 2]}
    only = count_classes(torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    assert {name: count.tolist() for name, count in only.items()} == {None: [3, 0], 0: [3, 0]}


# -- validation -----------------------------------------------------------------------------------------------


def scores_by_hand(clients: Artifact, encoder: Artifact, models: Sequence[dict[str, Tensor]]) -> list[float]:
    """Mean loss, AUROC and unweighted average recall of networks on the validation pairs."""
    val = PairedClients.from_tensors(clients.load("pairs.safetensors")).val
    rows = []
    for model in models:
        network = load_network(encoder)
        network.load_state_dict(model)
        probability = predict(network, val.image, val.ecg).logits.double().softmax(1).numpy()
        rows.append(
            [
                log_loss(val.label, probability),
                roc_auc_score(val.label, probability[:, 1]),
                recall_score(val.label, probability.argmax(1), average="macro"),
            ]
        )
    means: list[float] = np.mean(rows, axis=0).tolist()
    return means


@pytest.mark.parametrize("system", ["fedproto", "local"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_personal_models_are_validated_each_by_itself(
    tmp_path: Path, stored: Artifact, system: str, participation: float
) -> None:
    # With half of two clients and one round, one of the models is still the initial one.
    made = train_system(
        tmp_path, stored, system, rounds=1, participation=participation, learning_rate=0.01, checkpoint="last"
    )
    tensors = made.load("client_models.safetensors")
    models = [of_client(tensors, client) for client in (0, 1)]
    (row,) = history(made)
    found = [row["val/loss"], row["val/auroc"], row["val/uar"]]
    assert found == pytest.approx(scores_by_hand(stored, made, models), rel=1e-5)
    assert found != pytest.approx(scores_by_hand(stored, made, models[:1]), rel=1e-5)


@pytest.mark.parametrize("system", ["fedmpa", "centralized"])
def test_one_model_is_validated_as_it_is_stored(tmp_path: Path, stored: Artifact, system: str) -> None:
    made = train_system(tmp_path, stored, system, rounds=2)
    rows = history(made)
    chosen = made.manifest["notes"]["round" if system == "fedmpa" else "epoch"]
    row = rows[chosen - 1]
    wanted = scores_by_hand(stored, made, [made.load("model.safetensors")])
    assert [row["val/loss"], row["val/auroc"], row["val/uar"]] == pytest.approx(wanted, rel=1e-5)


# -- the kept round -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["fedmpa", "fedgpd", "fedproto", "local", "fedbn"])
def test_bank_uploads_and_models_are_those_of_the_best_round(
    tmp_path: Path, stored: Artifact, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validation_step(module: MultimodalClassifier, batch: Any, batch_index: int) -> None:
        # As if the second of three rounds were the best.
        module.log("val/loss", torch.tensor([0.9, 0.2, 0.5][module.trainer.current_epoch]))

    monkeypatch.setattr(MultimodalClassifier, "validation_step", validation_step)
    best = train_system(tmp_path / "best", stored, system, rounds=3)
    second = train_system(tmp_path / "second", stored, system, rounds=2, checkpoint="last")
    third = train_system(tmp_path / "third", stored, system, rounds=3, checkpoint="last")
    assert [one.manifest["notes"]["round"] for one in (best, second, third)] == [2, 2, 3]
    files = [file for file in FILES if file in best.manifest["files"]]
    assert "client_models.safetensors" in files
    for file in files:
        assert equal(best.load(file), second.load(file)), file
    assert not equal(best.load("client_models.safetensors"), third.load("client_models.safetensors"))


# -- resuming -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("fedmpa", {"class_weighting": "client"}),
        ("fedmpa", {"prototype_privacy": NOISE, "checkpoint": "last"}),
        ("fedproto", {"participation": 0.5}),
        ("fedgpd", {}),
        ("local", {}),
    ],
)
def test_a_killed_training_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, stored: Artifact, system: str, changes: dict[str, Any]
) -> None:
    train = partial(train_system, clients=stored, system=system, rounds=3, **changes)
    undisturbed = train(tmp_path / "undisturbed")
    killed_at(2, lambda: train(tmp_path / "killed"))
    torch.rand(3)
    resumed = train(tmp_path / "killed")
    same(resumed, undisturbed)
    ledgers = [[{**entry, "stage": ""} for entry in one.manifest["ledger"]] for one in (resumed, undisturbed)]
    assert ledgers[0] == ledgers[1]
