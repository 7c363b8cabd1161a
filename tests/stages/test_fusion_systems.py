"""The other encoder systems: on pooled pairs, of one modality, with normalization of each client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from sklearn.metrics import roc_auc_score
from tiny_stages import artifact, equal, run_stage, settings, stage_context, tiny_pairs, values

from fedsynth.data.paired import PairedClients
from fedsynth.federated.state import average_states
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import find_stage
from fedsynth.stages import training
from fedsynth.stages.fusion_encoder.datamodule import PairedClientsData
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.network import build_network, load_network, network_numbers, predict
from fedsynth.stages.system_arms import arms_of

ROUNDS = 3
UNUSED = {"image": "signal_encoder", "ecg": "image_encoder"}


def made(folder: Path, clients: Artifact, rounds: int = ROUNDS, **changes: Any) -> Artifact:
    inputs = {"clients": clients}
    return run_stage(
        "fusion_encoder", settings("fusion_encoder", **changes), inputs, stage_context(folder, rounds)
    )


def history(encoder: Artifact) -> list[dict[str, float]]:
    return json.loads((encoder.path / "history.json").read_text())


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("systems") / "clients" / "output"
    return artifact(folder, {"pairs.safetensors": tiny_pairs().to_tensors()})


@pytest.fixture(scope="module")
def centralized(tmp_path_factory: pytest.TempPathFactory, stored: Artifact) -> Artifact:
    return made(tmp_path_factory.mktemp("centralized"), stored, training="centralized")


@pytest.fixture(scope="module")
def fedbn(tmp_path_factory: pytest.TempPathFactory, stored: Artifact) -> Artifact:
    return made(tmp_path_factory.mktemp("fedbn"), stored, strategy={"name": "fedbn"})


@pytest.fixture(scope="module", params=["image", "ecg"])
def single(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, stored: Artifact) -> Any:
    """(modality, encoder trained with it alone)."""
    return request.param, made(tmp_path_factory.mktemp(request.param), stored, modalities=[request.param])


# -- centralized ----------------------------------------------------------------------------------------------


def test_centralized_training_makes_as_many_epochs_as_a_client_of_the_federation(
    centralized: Artifact,
) -> None:
    rows = history(centralized)
    epochs = ROUNDS * settings("fusion_encoder").local_epochs
    assert [row["epoch"] for row in rows] == list(range(epochs))
    losses = [row["val/loss"] for row in rows]
    assert centralized.manifest["notes"]["epoch"] == 1 + losses.index(min(losses))
    assert "round" not in centralized.manifest["notes"]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


def test_centralized_batches_hold_every_pair_once_an_epoch(pairs: PairedClients) -> None:
    whole = PairedClientsData(pairs, batch_size=8, seed=0, centralized=True)
    seen = torch.cat([batch["image"].sum((1, 2, 3)) for batch in whole.train_dataloader()])
    assert torch.equal(seen.sort().values, pairs.train.image.sum((1, 2, 3)).sort().values)
    shares = [
        torch.cat([b["image"].sum((1, 2, 3)) for b in PairedClientsData(
            pairs, batch_size=4, seed=0, centralized=True, rank=rank, world_size=2).train_dataloader()])
        for rank in (0, 1)
    ]  # fmt: skip
    assert torch.equal(torch.cat(shares).sort().values, seen.sort().values)


def test_a_killed_centralized_training_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, stored: Artifact, centralized: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kill(Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 3:
                raise InterruptedError

    progress = training.epoch_progress
    monkeypatch.setattr(training, "epoch_progress", lambda context, trainer_class: [Kill()])
    with pytest.raises(InterruptedError):
        made(tmp_path / "killed", stored, training="centralized")
    monkeypatch.setattr(training, "epoch_progress", progress)
    torch.rand(3)
    resumed = made(tmp_path / "killed", stored, training="centralized")
    for file in ("model.safetensors", "scores.safetensors"):
        assert equal(resumed.load(file), centralized.load(file))
    assert history(resumed) == history(centralized)


@pytest.mark.parametrize(
    ("training_", "words"), [("centralized", "pooled at one place"), ("federated", "FedAvg")]
)
def test_what_is_uncovered_says_how_the_encoder_was_trained(
    training_: str, words: str, centralized: Artifact
) -> None:
    stage = find_stage("fusion_encoder", "fusion_encoder")
    (first, *others) = stage.uncovered(settings("fusion_encoder", training=training_))
    assert words in first
    assert any("validation records" in other for other in others)
    if training_ == "centralized":
        (entry,) = centralized.manifest["ledger"]
        assert entry["epsilon"] == "inf"
        assert words in entry["not_covered"][0]


# -- one modality ---------------------------------------------------------------------------------------------


def test_the_encoder_of_the_other_modality_is_never_trained(single: Any) -> None:
    modality, encoder = single
    seed = training.derive_seed(42, "fusion_encoder")
    torch.manual_seed(seed)
    fresh = build_network(network_numbers(settings("fusion_encoder"))).state_dict()
    weights = encoder.load("model.safetensors")
    for name, value in weights.items():
        if name.startswith(UNUSED[modality]):
            assert torch.equal(value, fresh[name]), name
    used = [name for name in weights if name.startswith(UNUSED[{"image": "ecg", "ecg": "image"}[modality]])]
    assert not all(torch.equal(weights[name], fresh[name]) for name in used)


def test_a_single_modality_has_one_arm(single: Any) -> None:
    modality, encoder = single
    arm = f"{modality}_only"
    scores = encoder.load("scores.safetensors")
    assert {name.split("/")[0] for name in scores if "/" in name} == {arm}
    assert torch.equal(scores["test.probability"], scores[f"{arm}/test.probability"])
    assert {row["arm"] for row in encoder.manifest["metrics"]} == {arm}
    wanted = roc_auc_score(scores["test.label"], scores[f"{arm}/test.probability"])
    assert values(encoder)[(arm, "test/auroc", 42)] == pytest.approx(wanted)


def test_the_other_modality_influences_no_latent(tmp_path: Path, stored: Artifact, single: Any) -> None:
    modality, encoder = single
    other = {"image": "ecg", "ecg": "image"}[modality]
    tensors = stored.load("pairs.safetensors")
    blind = {
        name: torch.full_like(tensor, float("nan")) if name.endswith(f"/{other}") else tensor
        for name, tensor in tensors.items()
    }
    found = [
        run_stage(
            "encode", settings("encode"), {"clients": clients, "encoder": encoder}, stage_context(folder)
        )
        for clients, folder in (
            (stored, tmp_path / "seeing"),
            (artifact(tmp_path / "blind" / "output", {"pairs.safetensors": blind}), tmp_path / "encoded"),
        )
    ]
    assert equal(*(one.load("latents.safetensors") for one in found))
    assert bool(found[0].load("latents.safetensors")["train.latent"].isfinite().all())


def test_masks_of_a_single_modality_are_fixed_and_draw_nothing(pairs: PairedClients) -> None:
    module = FusionEncoder(
        network=network_numbers(settings("fusion_encoder")), modality_dropout=0.9, learning_rate=1e-3,
        weight_decay=0.0, modalities=["ecg"],
    )  # fmt: skip
    before = torch.get_rng_state()
    assert module.training_mask(5).tolist() == [[False, True]] * 5
    assert torch.equal(torch.get_rng_state(), before)


def test_arms_are_the_subsets_of_what_was_trained() -> None:
    assert list(arms_of(["ecg", "image"])) == ["both", "image_only", "ecg_only"]
    assert list(arms_of(["image"])) == ["image_only"]
    assert list(arms_of(["ecg"])) == ["ecg_only"]


# -- FedBN ----------------------------------------------------------------------------------------------------


def test_every_client_is_tested_with_the_global_weights_and_its_own_normalization(
    stored: Artifact, fedbn: Artifact
) -> None:
    own = fedbn.load("client_models.safetensors")
    weights = fedbn.load("model.safetensors")
    pairs = PairedClients.from_tensors(stored.load("pairs.safetensors"))
    for client in (0, 1):
        mine = {name.partition("/")[2]: value for name, value in own.items() if name.startswith(f"{client}/")}
        assert {name.rpartition(".")[2] for name in mine} == {
            "weight", "bias", "running_mean", "running_var", "num_batches_tracked",
        }  # fmt: skip
        network = load_network(fedbn)
        network.load_state_dict({**weights, **mine})
        wanted = roc_auc_score(
            pairs.test.label, predict(network, pairs.test.image, pairs.test.ecg).logits.softmax(1)[:, 1]
        )
        assert values(fedbn)[(f"client_{client}", "test/auroc", 42)] == pytest.approx(wanted)


def test_the_stored_global_normalization_is_the_clients_average_of_the_same_round(fedbn: Artifact) -> None:
    own = fedbn.load("client_models.safetensors")
    weights = fedbn.load("model.safetensors")
    states = [
        {name.partition("/")[2]: value for name, value in own.items() if name.startswith(f"{client}/")}
        for client in (0, 1)
    ]
    assert equal(average_states(states, [18, 12]), {name: weights[name] for name in states[0]})
    assert not equal(*states)


def test_fedavg_stores_no_normalization_of_clients(tmp_path: Path, stored: Artifact) -> None:
    encoder = made(tmp_path, stored, 1)
    assert "client_models.safetensors" not in encoder.manifest["files"]
    assert not [row for row in encoder.manifest["metrics"] if row["arm"].startswith("client_")]


def test_a_killed_fedbn_stage_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, stored: Artifact, fedbn: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kill(Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == ROUNDS - 1:
                raise InterruptedError

    progress = training.epoch_progress
    monkeypatch.setattr(training, "epoch_progress", lambda context, trainer_class: [Kill()])
    with pytest.raises(InterruptedError):
        made(tmp_path / "killed", stored, strategy={"name": "fedbn"})
    monkeypatch.setattr(training, "epoch_progress", progress)
    resumed = made(tmp_path / "killed", stored, strategy={"name": "fedbn"})
    for file in ("model.safetensors", "scores.safetensors", "client_models.safetensors"):
        assert equal(resumed.load(file), fedbn.load(file))
    assert values(resumed) == values(fedbn)


# -- scores and gates -----------------------------------------------------------------------------------------


def test_stored_logits_are_the_log_odds_of_the_stored_probabilities(centralized: Artifact) -> None:
    scores = centralized.load("scores.safetensors")
    for arm in ("both", "image_only", "ecg_only"):
        for split in ("val", "test"):
            logit = scores[f"{arm}/{split}.logit"]
            assert logit.dtype == torch.float64
            torch.testing.assert_close(
                logit.sigmoid(), scores[f"{arm}/{split}.probability"], atol=1e-12, rtol=1e-9
            )
            assert len(scores[f"{split}.label"]) == len(logit)


def test_gates_and_attention_are_metrics_too_and_attention_sums_to_one(centralized: Artifact) -> None:
    reported, notes = values(centralized), centralized.manifest["notes"]["gates"]
    for name in ("negative", "positive"):
        assert reported[("gates", f"{name}/gate_image", 42)] == notes[name]["gates"][0]
        assert reported[("gates", f"{name}/gate_ecg", 42)] == notes[name]["gates"][1]
        assert reported[("gates", f"{name}/attention_image_to_ecg", 42)] == notes[name]["attention"][0][1]
        for query in ("image", "ecg"):
            row = [reported[("gates", f"{name}/attention_{query}_to_{key}", 42)] for key in ("image", "ecg")]
            assert sum(row) == pytest.approx(1.0, abs=1e-6)
