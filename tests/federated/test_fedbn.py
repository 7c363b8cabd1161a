"""FedBN is FedAvg but for batch normalization, which every client finds again as it left it."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from test_sharding import run
from torch import nn
from toy_federation import (
    SIZES,
    TinyNet,
    ToyData,
    difference,
    federation,
    fitted,
    reference_training,
)

from fedsynth.errors import ConfigError
from fedsynth.federated.client import ClientUpdate
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.strategies.fedbn import FedBN, batch_norm_names

NAMES = ("net.1.weight", "net.1.bias", "net.1.running_mean", "net.1.running_var", "net.1.num_batches_tracked")


def fedbn() -> FedBN:
    return FedBN(NAMES)


def test_equals_plain_pytorch_fedbn_to_the_last_bit(tmp_path) -> None:
    strategy = fedbn()
    _, module = fitted(tmp_path, fed=federation(strategy=strategy))
    wanted, kept = reference_training(3, 2, seed=3, kept_names=NAMES)
    assert difference(module.state_dict(), wanted) == 0.0
    assert {
        client: difference(state, kept[client]) for client, state in strategy.kept.items()
    } == dict.fromkeys(SIZES, 0.0)


def test_it_differs_from_fedavg_from_the_second_round_on(tmp_path) -> None:
    for rounds, differs in ((1, False), (2, True)):
        _, ours = fitted(tmp_path, fed=federation(strategy=fedbn()), max_epochs=rounds)
        _, averaged = fitted(tmp_path, max_epochs=rounds)
        assert (difference(ours.state_dict(), averaged.state_dict()) > 0) == differs


def test_one_client_is_fedavg(tmp_path) -> None:
    data = ToyData({"b": SIZES["b"]})
    _, ours = fitted(tmp_path, fed=federation(strategy=fedbn()), data=data)
    _, averaged = fitted(tmp_path, data=data)
    assert difference(ours.state_dict(), averaged.state_dict()) == 0.0


def test_a_client_starts_from_the_global_weights_and_its_own_normalization(tmp_path) -> None:
    class Starts(Callback):
        def __init__(self) -> None:
            self.first = True
            self.own: dict = {}
            self.seen = 0

        def on_train_epoch_start(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
            self.globally = {k: v.clone() for k, v in module.state_dict().items()}

        def on_client_start(self, trainer, module, client) -> None:  # type: ignore[no-untyped-def]
            for name, value in module.state_dict().items():
                own = self.own.get(client, {}) if name in NAMES else {}
                assert torch.equal(value, own.get(name, self.globally[name]))
                self.seen += name in own

        def on_client_end(self, trainer, module, update) -> None:  # type: ignore[no-untyped-def]
            assert difference(module.state_dict(), self.globally) == 0.0
            self.own[update.client] = update.state

    starts = Starts()
    fitted(tmp_path, fed=federation(strategy=fedbn()), callbacks=[starts])
    assert starts.seen == len(NAMES) * len(SIZES) * 2  # three rounds, nothing of their own in the first


def test_the_global_model_holds_the_record_weighted_normalization() -> None:
    strategy = FedBN(["bn"])
    updates = [
        ClientUpdate("a", 1, {"w": torch.zeros(2), "bn": torch.zeros(2)}, {}, 1),
        ClientUpdate("b", 3, {"w": torch.ones(2), "bn": torch.full((2,), 4.0)}, {}, 1),
    ]
    found = strategy.aggregate({"w": torch.zeros(2), "bn": torch.zeros(2)}, updates)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"w": [0.75, 0.75], "bn": [3.0, 3.0]}
    assert strategy.client_state(found, "a")["bn"].tolist() == [0.0, 0.0]
    assert strategy.client_state(found, "a")["w"].tolist() == [0.75, 0.75]
    assert strategy.client_state(found, "newcomer") == found


def test_resuming_from_any_checkpoint_equals_the_uninterrupted_run(tmp_path) -> None:
    strategy = fedbn()
    fed = federation(strategy=strategy, participation=0.7)
    saver = ModelCheckpoint(
        dirpath=tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=9, filename="{step}"
    )
    _, whole = fitted(tmp_path, fed=fed, callbacks=[saver], enable_checkpointing=True)
    files = sorted((tmp_path / "ckpt").glob("*.ckpt"))
    assert len(files) >= 5
    for path in files:
        again = fedbn()
        fed = federation(strategy=again, participation=0.7)
        _, module = fitted(tmp_path, fed=fed, ckpt_path=str(path))
        assert difference(module.state_dict(), whole.state_dict()) == 0.0
        assert again.kept.keys() == strategy.kept.keys()
        assert all(difference(again.kept[client], strategy.kept[client]) == 0.0 for client in strategy.kept)


@pytest.mark.ddp
def test_two_processes_equal_one_to_the_last_bit(tmp_path) -> None:
    (one,), _ = run(tmp_path / "one", "--fedbn")
    two, _ = run(tmp_path / "two", "--fedbn", "--devices", 2)
    assert len(two) == 2
    for result in two:
        assert difference(result["state"], one["state"]) == 0.0
        assert result["strategy"]["kept"].keys() == set(SIZES)
        for client, state in result["strategy"]["kept"].items():
            assert difference(state, one["strategy"]["kept"][client]) == 0.0


def test_only_batch_normalization_is_named() -> None:
    module = nn.Sequential(
        nn.Conv1d(1, 4, 3),
        nn.BatchNorm1d(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.Sequential(nn.BatchNorm2d(3)),
    )
    assert {name.rpartition(".")[0] for name in batch_norm_names(module)} == {"1", "4.0"}
    assert batch_norm_names(TinyNet()) == NAMES


def test_a_model_without_batch_normalization_is_refused() -> None:
    with pytest.raises(ConfigError, match="would be FedAvg"):
        FedBN(batch_norm_names(nn.Linear(2, 2)))


def test_names_of_another_model_are_refused() -> None:
    update = ClientUpdate("a", 1, {"w": torch.zeros(1)}, {}, 1)
    with pytest.raises(ConfigError, match="'bn', which is no part of the model"):
        FedBN(["bn"]).aggregate({"w": torch.zeros(1)}, [update])


def test_fedavg_starts_every_client_from_the_global_model() -> None:
    state = {"w": torch.zeros(1)}
    assert FedAvg().client_state(state, "a") is state
