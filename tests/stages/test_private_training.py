"""DP-SGD of the fusion encoder: per-record gradients, clipping, noise, empty batches, resume, the ledger."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import equal, run_stage, settings, stage_context, tiny_pairs
from torch import Tensor, nn

from fedsynth.data.paired import PairedClients
from fedsynth.errors import ConfigError
from fedsynth.federated.client import Federation
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.models.fusion_classifier import FusionClassifier
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.fusion_encoder import private_training
from fedsynth.stages.fusion_encoder.network import build_network, network_numbers
from fedsynth.stages.fusion_encoder.per_record import LinearSelfAttention, per_record_view
from fedsynth.stages.fusion_encoder.private_training import (
    PrivateClientsData,
    PrivateFusionEncoder,
    PrivateTraining,
    plan_private_training,
)

PRIVATE = {
    "mechanism": "dp_sgd", "normalization": "group", "missing": "zero", "epsilon": 8.0, "clip_norm": 0.5,
    "dropout": 0.0,
}  # fmt: skip


def network(**changes: Any) -> FusionClassifier:
    torch.manual_seed(0)
    return build_network(network_numbers(settings("fusion_encoder", **{**PRIVATE, **changes})))


def batch(num: int = 6) -> dict[str, Tensor]:
    pairs = tiny_pairs().train
    mask = torch.tensor([[True, True], [True, False], [False, True]]).repeat(num, 1)[:num]
    return {"image": pairs.image[:num], "ecg": pairs.ecg[:num], "label": pairs.label[:num], "mask": mask}


def loss(model: nn.Module, part: dict[str, Tensor], reduction: str = "sum") -> Tensor:
    logits = model(part["image"], part["ecg"], part["mask"]).logits
    return nn.functional.cross_entropy(logits, part["label"], reduction=reduction)


def gradients(model: nn.Module, part: dict[str, Tensor], reduction: str = "sum") -> list[Tensor]:
    return list(torch.autograd.grad(loss(model, part, reduction), list(model.parameters())))


def single(part: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: tensor[index : index + 1] for name, tensor in part.items()}


@pytest.mark.parametrize("fusion", ["gated", "mean"])
def test_per_record_gradients_are_those_of_single_records(fusion: str) -> None:
    plain, part = network(fusion=fusion), batch()
    loss(per_record_view(plain), part).backward()
    for index in range(6):
        alone = gradients(plain, single(part, index))
        for (name, parameter), wanted in zip(plain.named_parameters(), alone, strict=True):
            found = parameter.grad_sample[index]
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4, msg=f"{name}, record {index}")


def test_the_view_trains_the_plain_network_under_its_plain_names() -> None:
    plain = network()
    names = list(plain.state_dict())
    view = per_record_view(plain)
    assert list(plain.state_dict()) == names
    assert {id(parameter) for parameter in view.parameters()} == {id(p) for p in plain.parameters()}
    torch.testing.assert_close(loss(view, batch()), loss(plain, batch()))


def test_linear_self_attention_equals_multihead_attention() -> None:
    torch.manual_seed(1)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    tokens, hidden = torch.randn(5, 2, 8), torch.tensor([[False, False], [True, False]] * 2 + [[False, True]])
    wanted = attention(tokens, tokens, tokens, key_padding_mask=hidden)
    found = LinearSelfAttention(attention)(tokens, tokens, tokens, key_padding_mask=hidden)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


class Once:
    """One DP-SGD step on one batch, as the federated loop would take it, with plain SGD below."""

    def __init__(
        self, part: dict[str, Tensor], *, clip_norm: float, epsilon: float, records: int = 12, lr: float = 0.1
    ) -> None:
        numbers = network_numbers(settings("fusion_encoder", **PRIVATE))
        torch.manual_seed(0)
        self.module = PrivateFusionEncoder(
            network=numbers, modality_dropout=0.0, learning_rate=lr, weight_decay=0.0
        )
        pairs = tiny_pairs()
        plan = {
            "epsilon": epsilon, "delta": 1e-5, "clip_norm": clip_norm, "batch_size": records, "num_epochs": 1,
            "seed": 3, "secure_noise": False,
        }  # fmt: skip
        self.module.training_plan = PrivateTraining.plan(pairs, **plan)
        self.before = [p.detach().clone() for p in self.module.network.parameters()]
        data = PrivateClientsData(pairs, self.module.training_plan)
        data.train_dataloader = lambda: _one_batch(part)  # type: ignore[method-assign]
        federation = Federation(local_epochs=1, seed=0, strategy=FedAvg())
        trainer = FederatedTrainer(
            federation=federation, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
        )  # fmt: skip
        self.module.configure_optimizers = lambda: _with_sgd(self.module, lr)  # type: ignore[method-assign]
        trainer.fit(self.module, data)
        self.metrics = trainer.callback_metrics
        self.moved = [
            (old - new.detach()) / lr
            for old, new in zip(self.before, self.module.network.parameters(), strict=True)
        ]
        self.plain = network()


def _with_sgd(module: PrivateFusionEncoder, lr: float) -> Any:
    optimizer = PrivateFusionEncoder.configure_optimizers(module)
    optimizer.original_optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    return optimizer


def _one_batch(part: dict[str, Tensor]) -> Any:
    from lightning.pytorch.utilities.combined_loader import CombinedLoader
    from torch.utils.data import DataLoader, Dataset

    class Whole(Dataset):  # type: ignore[type-arg]
        num_records = 12

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {name: part[name] for name in ("image", "ecg", "label")}

    return CombinedLoader({1: DataLoader(Whole(), batch_size=None)}, mode="sequential")


def full(num: int = 7) -> dict[str, Tensor]:
    return {**batch(num), "mask": torch.ones(num, 2, dtype=torch.bool)}


@pytest.mark.parametrize("at_a_time", [128, 3])
def test_without_noise_and_clipping_a_step_is_a_plain_sgd_step(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_training, "RECORDS_AT_A_TIME", at_a_time)
    step = Once(full(), clip_norm=1e6, epsilon=math.inf)
    # Of the sum over the 7 records drawn, divided by the 12 expected ones.
    for found, wanted in zip(step.moved, gradients(step.plain, full()), strict=True):
        torch.testing.assert_close(found, wanted / 12, atol=1e-5, rtol=1e-3)


def test_a_step_sums_clipped_gradients_of_single_records() -> None:
    clip, part = 0.05, full()
    step = Once(part, clip_norm=clip, epsilon=math.inf)
    total = [torch.zeros_like(old) for old in step.before]
    for index in range(7):
        alone = gradients(step.plain, single(part, index))
        norm = float(torch.cat([g.flatten() for g in alone]).norm())
        assert norm > clip
        total = [t + g * min(1.0, clip / norm) for t, g in zip(total, alone, strict=True)]
    for found, wanted in zip(step.moved, total, strict=True):
        torch.testing.assert_close(found, wanted / 12, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("record", range(3))
def test_one_record_moves_a_step_by_at_most_the_clip_norm(record: int) -> None:
    part = full()
    huge = {**part, "image": part["image"].clone()}
    huge["image"][record] *= 1e3
    without = {name: torch.cat([t[:record], t[record + 1 :]]) for name, t in part.items()}
    with_it, rest = (Once(p, clip_norm=0.05, epsilon=math.inf).moved for p in (huge, without))
    distance = torch.cat([(a - b).flatten() for a, b in zip(with_it, rest, strict=True)]).norm()
    assert float(distance) * 12 <= 0.05 * (1 + 1e-3)


def test_an_empty_batch_moves_by_noise_of_the_calibrated_size() -> None:
    empty = {name: tensor[:0] for name, tensor in full().items()}
    step = Once(empty, clip_norm=0.5, epsilon=8.0)
    noise = step.module.training_plan.noises[1]  # type: ignore[union-attr]
    moved = torch.cat([change.flatten() for change in step.moved])
    std = noise.noise_to_clip * 0.5 / 12
    assert float(moved.std()) == pytest.approx(std, rel=5 / (2 * len(moved)) ** 0.5)
    assert float(moved.mean().abs()) < 5 * std / len(moved) ** 0.5
    still = Once(empty, clip_norm=0.5, epsilon=math.inf)
    assert all(bool((change == 0).all()) for change in still.moved)


def test_a_client_s_loss_is_not_reported() -> None:
    assert not [name for name in Once(full(), clip_norm=1.0, epsilon=8.0).metrics if "loss" in name]


def run(folder: Path, clients: Artifact, rounds: int = 3, **changes: Any) -> Artifact:
    stage_settings = settings("fusion_encoder", **{**PRIVATE, **changes})
    return run_stage("fusion_encoder", stage_settings, {"clients": clients}, stage_context(folder, rounds))


def test_the_stage_pays_for_all_rounds_in_the_ledger(tmp_path: Path, clients: Artifact) -> None:
    made = run(tmp_path / "a", clients)
    (entry,) = made.manifest["ledger"]
    assert entry["adjacency"] == "replace_one"
    assert 7.9 < entry["epsilon"] <= 8.0
    notes = made.manifest["notes"]["dp_sgd"]
    # 18 and 12 records in batches of 8, two local epochs, three rounds.
    assert {name: note["steps"] for name, note in notes.items()} == {"0": 18, "1": 12}
    assert notes["0"]["sample_rate"] == pytest.approx(8 / 18)
    history = json.loads((made.path / "history.json").read_text())
    assert not [key for row in history for key in row if "train" in key]


def test_noise_follows_from_key_and_seed_and_secure_noise_does_not(tmp_path: Path, clients: Artifact) -> None:
    first, again, secure = (
        run(tmp_path / name, clients, 1, secure_noise=name == "secure").load("model.safetensors")
        for name in ("first", "again", "secure")
    )
    assert equal(first, again)
    assert not equal(first, secure)
    other = stage_context(tmp_path / "other", 1, key="1" * 64)
    stage_settings = settings("fusion_encoder", **PRIVATE)
    made = run_stage("fusion_encoder", stage_settings, {"clients": clients}, other)
    assert not equal(first, made.load("model.safetensors"))


def test_a_secure_root_is_written_nowhere(tmp_path: Path, clients: Artifact, monkeypatch: Any) -> None:
    root = 0x5EC2E7_5EC2E7_5E
    monkeypatch.setattr(private_training.secrets, "randbits", lambda bits: root)
    made = run(tmp_path / "secure", clients, 1, secure_noise=True)
    assert str(root) not in json.dumps(made.manifest)
    checkpoint = torch.load(tmp_path / "secure" / "checkpoints" / "last.ckpt", weights_only=True)
    assert str(root) not in repr({k: v for k, v in checkpoint.items() if k != "state_dict"})
    assert str(root) not in repr(PrivateTraining({}, 1e-5, 1.0, root))


def test_a_killed_private_training_goes_on_to_the_same_bits(
    tmp_path: Path, clients: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", clients).load("model.safetensors")
    step, count = PrivateFusionEncoder.training_step, iter(range(1000))

    def killed(self: PrivateFusionEncoder, *arguments: Any) -> None:
        if next(count) == 13:  # in the second round, within the first client
            raise KeyboardInterrupt
        step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateFusionEncoder, "training_step", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(tmp_path / "killed", clients)
    assert next(count) == 14
    assert equal(run(tmp_path / "killed", clients).load("model.safetensors"), whole)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"normalization": "batch"}, "model.normalization=group"),
        ({"missing": "skip"}, "model.missing=zero"),
        ({"training": "centralized"}, "federated=fedavg"),
        ({"epsilon": 1000.0}, "Typical: 2 to 8"),
    ],
)
def test_what_dp_sgd_cannot_train_is_refused_with_a_remedy(change: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        settings("fusion_encoder", **{**PRIVATE, **change}).check("stages.fusion_encoder")


def test_the_view_refuses_layers_that_mix_records() -> None:
    with pytest.raises(ConfigError, match=r"model\.normalization=group"):
        per_record_view(network(normalization="batch"))
    with pytest.raises(ConfigError, match=r"model\.missing=zero"):
        per_record_view(network(missing="skip"))


def test_training_on_one_batch_again_and_again_is_refused(tmp_path: Path, pairs: PairedClients) -> None:
    context = stage_context(tmp_path / "o", trainer={"overfit_batches": 1})
    with pytest.raises(ConfigError, match="overfit_batches=1"):
        plan_private_training(settings("fusion_encoder", **PRIVATE), pairs, context)
    assert plan_private_training(settings("fusion_encoder"), pairs, context) is None


def test_no_two_steps_of_all_clients_and_rounds_share_their_noise_or_their_draw(
    tmp_path: Path, clients: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opacus.optimizers import DPOptimizer

    noises, draws = [], []
    add, step = DPOptimizer.add_noise, PrivateFusionEncoder.training_step

    def heard(self: DPOptimizer) -> None:
        add(self)
        first = self.params[0]
        noise = (first.grad - first.summed_grad).flatten()[:8] / (self.noise_multiplier * self.max_grad_norm)
        noises.append(noise.clone())

    def drawn(self: PrivateFusionEncoder, batch: dict[str, Tensor], index: int) -> None:
        draws.append(batch["image"].flatten(1).sum(1).tolist())
        step(self, batch, index)

    monkeypatch.setattr(DPOptimizer, "add_noise", heard)
    monkeypatch.setattr(PrivateFusionEncoder, "training_step", drawn)
    made = run(tmp_path / "a", clients)
    paid = sum(note["steps"] for note in made.manifest["notes"]["dp_sgd"].values())
    assert len(noises) == len(draws) == paid == 30
    distance = torch.cdist(torch.stack(noises), torch.stack(noises)) + 10 * torch.eye(30)
    assert float(distance.min()) > 0.1
    assert len({tuple(draw) for draw in draws}) > 25  # small batches of few records may repeat


@pytest.mark.parametrize("share", [0.34, 1.0])
def test_no_client_takes_more_steps_than_were_paid_for(
    tmp_path: Path, clients: Artifact, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    taken: dict[int, int] = {}
    start, step = PrivateFusionEncoder.on_client_start, PrivateFusionEncoder.training_step
    current = []

    def started(self: PrivateFusionEncoder, client: int) -> None:
        current.append(client)
        start(self, client)

    def counted(self: PrivateFusionEncoder, *arguments: Any) -> None:
        taken[current[-1]] = taken.get(current[-1], 0) + 1
        step(self, *arguments)

    monkeypatch.setattr(PrivateFusionEncoder, "on_client_start", started)
    monkeypatch.setattr(PrivateFusionEncoder, "training_step", counted)
    made = run(tmp_path / "a", clients, participation=share)
    paid = {int(name): note["steps"] for name, note in made.manifest["notes"]["dp_sgd"].items()}
    assert taken
    assert all(taken[client] <= paid[client] for client in taken)
    assert (taken == paid) == (share == 1.0)


def test_an_unplanned_private_module_says_so() -> None:
    numbers = network_numbers(settings("fusion_encoder", **PRIVATE))
    module = PrivateFusionEncoder(network=numbers, modality_dropout=0.0, learning_rate=0.1, weight_decay=0.0)
    with pytest.raises(ConfigError, match="training_plan is not set"):
        module.configure_optimizers()


def test_infinite_epsilon_clips_without_a_guarantee(tmp_path: Path, clients: Artifact) -> None:
    made = run(tmp_path / "inf", clients, 1, epsilon=math.inf)
    (entry,) = made.manifest["ledger"]
    assert entry["epsilon"] == "inf"
    assert any("without noise" in text for text in entry["not_covered"])
    assert dataclasses.replace(settings("fusion_encoder", **PRIVATE)).clip_norm == 0.5
