"""FedProx, FedProto, FedGPD and local training: what each adds to FedAvg, and that without it it is FedAvg."""

import lightning
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from scipy.special import log_softmax, softmax
from sklearn.metrics import mean_squared_error
from test_sharding import run
from torch import Tensor, nn
from toy_federation import (
    PROTOTYPE_STRATEGIES,
    SIZES,
    EmbeddingNet,
    TinyNet,
    ToyData,
    assert_same,
    difference,
    federation,
    fedgpd,
    fedproto,
    fitted,
    make_loaders,
    reference_fedavg,
    reference_training,
)

from fedsynth.errors import ConfigError
from fedsynth.federated.client import ClientUpdate
from fedsynth.federated.strategies.fedprox import FedProx, squared_distance
from fedsynth.federated.strategies.local import LocalOnly
from fedsynth.prototypes.class_prototypes import ClassPrototypes

ALL = tuple(TinyNet().state_dict())


def fit(root, strategy, **changes: object):  # type: ignore[no-untyped-def]
    return fitted(root, **{"module": EmbeddingNet(), **changes}, fed=federation(strategy=strategy))


class Starts(Callback):
    """The model every client started from and sent, by round."""

    def __init__(self) -> None:
        self.starts: list[dict] = []
        self.updates: list[ClientUpdate] = []

    def on_client_start(self, trainer, module, client) -> None:  # type: ignore[no-untyped-def]
        self.starts.append({k: v.clone() for k, v in module.state_dict().items()})

    def on_client_end(self, trainer, module, update) -> None:  # type: ignore[no-untyped-def]
        self.updates.append(update)


# FedProx


def test_fedprox_without_weight_is_fedavg_to_the_last_bit(tmp_path) -> None:
    _, module = fit(tmp_path, FedProx(proximal_weight=0.0))
    assert difference(module.state_dict(), reference_fedavg(3, 2, seed=3)) == 0.0


@given(weight=st.floats(1e-3, 100), seed=st.integers(0, 1000))
def test_the_proximal_gradient_is_the_distance_times_its_weight(weight, seed) -> None:
    module = TinyNet()
    stream = torch.Generator().manual_seed(seed)
    start = {name: torch.randn(value.shape, generator=stream) for name, value in module.state_dict().items()}
    loss = FedProx(proximal_weight=weight).local_objective(torch.tensor(2.0), module, start, {})
    loss.backward()
    squares = 0.0
    for name, value in module.named_parameters():
        moved = value.detach() - start[name]
        squares += float(moved.double().square().sum())
        assert torch.allclose(value.grad, weight * moved, rtol=1e-6, atol=1e-6)
    assert float(loss) == pytest.approx(2.0 + weight / 2 * squares, rel=1e-5)


def test_without_weight_unused_parameters_get_no_gradient_that_adamw_would_act_on() -> None:
    module = TinyNet()
    loss = module.net[4].bias.sum()
    FedProx(proximal_weight=0.0).local_objective(loss, module, module.state_dict(), {}).backward()
    assert [name for name, value in module.named_parameters() if value.grad is not None] == ["net.4.bias"]


def test_buffers_and_frozen_parameters_do_not_enter_the_distance() -> None:
    module = TinyNet()
    start = {name: value.clone() for name, value in module.state_dict().items()}
    module.net[1].running_mean += 5.0
    module.net[0].weight.requires_grad_(False)
    module.net[0].weight += 5.0
    assert float(squared_distance(module, start)) == 0.0
    with torch.no_grad():
        module.net[4].bias += 2.0
    assert float(squared_distance(module, start)) == pytest.approx(8.0)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_fedprox_equals_plain_pytorch(tmp_path, accumulate) -> None:
    sizes = {"b": SIZES["b"]}
    strategy = FedProx(proximal_weight=0.7)
    changes = {"module": TinyNet(dropout=0.0), "data": ToyData(sizes), "accumulate_grad_batches": accumulate}
    _, module = fit(tmp_path, strategy, max_epochs=2, **changes)
    model, loader = TinyNet(dropout=0.0), make_loaders(sizes)["b"]
    for round_ in range(2):
        start = [value.detach().clone() for value in model.parameters()]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for epoch in (2 * round_, 2 * round_ + 1):
            loader.sampler.set_epoch(epoch)
            for index, (x, y) in enumerate(loader, start=1):
                loss = nn.functional.cross_entropy(model.net(x), y)
                for value, old in zip(model.parameters(), start, strict=True):
                    loss = loss + 0.35 * (value - old).pow(2).sum()
                (loss / accumulate).backward()
                if index % accumulate == 0 or index == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
    # Sums in another order; Adam makes steps of .05 whatever the size of the gradient.
    assert difference(module.state_dict(), model.state_dict()) < 1e-4


def test_a_negative_proximal_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match="proximal_weight must be ≥ 0, got -1"):
        FedProx(proximal_weight=-1)


# Local training


def test_local_training_is_that_of_every_client_alone_in_plain_pytorch(tmp_path) -> None:
    strategy = LocalOnly()
    fit(tmp_path, strategy)
    _, alone = reference_training(3, 2, seed=3, kept_names=ALL)
    assert_same(dict(strategy.client_models()), alone)


@pytest.mark.parametrize("client", ["b", "e"])
def test_local_training_is_that_of_the_stock_trainer(tmp_path, client) -> None:
    strategy = LocalOnly()
    fed = federation(strategy=strategy, local_epochs=3)
    fitted(tmp_path, module=TinyNet(dropout=0.0), fed=fed, max_epochs=1)
    alone = TinyNet(dropout=0.0)
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(alone, train_dataloaders=make_loaders()[client])
    assert difference(dict(strategy.client_models()[client]), alone.state_dict()) == 0.0


def test_nothing_leaves_a_client_in_local_training(tmp_path) -> None:
    trainer, module = fit(tmp_path, LocalOnly())
    assert difference(module.state_dict(), TinyNet().state_dict()) == 0.0
    assert float(trainer.callback_metrics["traffic/bytes_up"]) == 0.0
    assert float(trainer.callback_metrics["traffic/bytes_down"]) == 0.0


def test_local_training_resumes(tmp_path) -> None:
    saver = ModelCheckpoint(
        dirpath=tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=25, filename="{step}"
    )
    whole = LocalOnly()
    fit(tmp_path, whole, callbacks=[saver], enable_checkpointing=True)
    for path in (tmp_path / "ckpt").glob("*.ckpt"):
        again = LocalOnly()
        fit(tmp_path, again, ckpt_path=str(path))
        assert_same(again.state_dict(), whole.state_dict())


# FedProto


def test_fedproto_averages_no_weights_and_every_client_keeps_its_own(tmp_path) -> None:
    strategy, seen = fedproto(), Starts()
    _, module = fit(tmp_path, strategy, callbacks=[seen])
    initial = EmbeddingNet().state_dict()
    assert difference(module.state_dict(), initial) == 0.0
    own: dict = {}
    assert len(seen.updates) == 3 * len(SIZES)
    for start, update in zip(seen.starts, seen.updates, strict=True):
        assert difference(start, own.get(update.client, initial)) == 0.0
        own[update.client] = update.state
    assert_same(dict(strategy.client_models()), own)
    assert difference(own["a"], own["b"]) > 0.1


def test_fedproto_without_pull_is_local_training_to_the_last_bit(tmp_path) -> None:
    strategy = fedproto(pull_weight=0.0)
    fit(tmp_path, strategy)
    _, alone = reference_training(3, 2, seed=3, kept_names=ALL)
    assert_same(dict(strategy.client_models()), alone)


def test_fedproto_sends_prototypes_alone(tmp_path) -> None:
    strategy, seen = fedproto(), Starts()
    trainer, _ = fit(tmp_path, strategy, callbacks=[seen])
    assert strategy.bank is not None
    for update in seen.updates:
        assert_same(dict(enumerate(strategy.sent_up(update))), dict(enumerate(update.message.values())))
        assert update.message.keys() == {"mean/fused", "count/fused"}
    mean, count = 2 * 8 * 4, 2 * 8  # bytes of [class 2, dim 8] in float32 and [class 2] in int64
    assert float(trainer.callback_metrics["traffic/bytes_up"]) == mean + count
    assert float(trainer.callback_metrics["traffic/bytes_down"]) == mean


def test_the_pull_of_fedproto_is_the_mean_squared_error_to_the_bank() -> None:
    strategy = fedproto(pull_weight=0.3)
    bank, z, y = fill_bank(strategy)
    found = strategy.local_objective(torch.tensor(1.0), EmbeddingNet(), {}, step(z, y))
    error = mean_squared_error(bank[y], z.double().numpy())  # over records and dimensions
    assert float(found) == pytest.approx(1.0 + 0.3 * error, rel=1e-5)


def test_a_smaller_distance_to_the_bank_is_what_fedproto_buys(tmp_path) -> None:
    def spread(pull: float) -> float:
        """Variance of the clients' prototypes around their mean, in the last round."""
        strategy = fedproto(pull_weight=pull)
        fit(tmp_path, strategy)
        return float(torch.stack([sent.mean["fused"] for sent in strategy.uploads.values()]).var(0).sum())

    assert spread(5.0) < 0.5 * spread(0.0)


# FedGPD


def test_fedgpd_without_weight_is_fedavg_to_the_last_bit(tmp_path) -> None:
    _, module = fit(tmp_path, fedgpd(distillation_weight=0.0))
    assert difference(module.state_dict(), reference_fedavg(3, 2, seed=3)) == 0.0


def test_fedgpd_differs_from_fedavg_from_the_second_round_on(tmp_path) -> None:
    for rounds, differs in ((1, False), (2, True)):
        _, module = fit(tmp_path, fedgpd(), max_epochs=rounds)
        moved = difference(module.state_dict(), reference_fedavg(rounds, 2, seed=3))
        assert moved > 1e-3 if differs else moved == 0.0


def test_fedgpd_distils_from_the_softened_bank() -> None:
    strategy = fedgpd(distillation_weight=0.3, temperature=2.0)
    bank, z, y = fill_bank(strategy)
    found = strategy.local_objective(torch.tensor(1.0), EmbeddingNet(), {}, step(z, y))
    terms = -(softmax(bank[y] / 2, axis=1) * log_softmax(z.double().numpy() / 2, axis=1)).sum(1)
    assert float(found) == pytest.approx(1.0 + 0.3 * terms.mean(), rel=1e-5)


def test_fedgpd_weighs_clients_by_their_records() -> None:
    updates = [
        ClientUpdate(name, n, {"w": torch.full((1,), value)}, {}, 1, message=message([[1.0], [2.0]]))
        for name, n, value in (("a", 1, 0.0), ("b", 3, 4.0))
    ]
    assert fedgpd().aggregate({"w": torch.zeros(1)}, updates)["w"].item() == 3.0


# What FedProto and FedGPD share


def message(mean: list[list[float]]) -> dict[str, Tensor]:
    count = torch.ones(2, dtype=torch.int64)
    return ClassPrototypes({"fused": torch.tensor(mean)}, {"fused": count}).to_tensors()


def fill_bank(strategy) -> tuple[np.ndarray, Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """Give the server a bank; (bank, embeddings, labels)."""
    bank = [[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]]
    strategy.receive([ClientUpdate("a", 1, {}, {}, 1, message=message(bank))])
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(5))
    return np.array(bank), z, torch.tensor([0, 1, 1, 0, 1, 0, 0])


def step(z: Tensor, y: Tensor) -> dict:
    return {"embeddings": {"fused": z}, "label": y}


@pytest.mark.parametrize("make", [fedproto, fedgpd])
def test_the_bank_is_that_of_the_last_round_alone(tmp_path, make) -> None:
    strategy, seen = make(), Starts()
    fit(tmp_path, strategy, callbacks=[seen])
    last = seen.updates[-len(SIZES) :]
    counts = torch.stack([u.message["count/fused"] for u in last]).double()[:, :, None]
    means = torch.stack([u.message["mean/fused"] for u in last]).double()
    pooled = (counts * means).sum(0) / counts.sum(0)
    assert strategy.bank is not None
    assert torch.allclose(strategy.bank.mean["fused"].double(), pooled, atol=1e-6)


@pytest.mark.parametrize("make", [fedproto, fedgpd])
def test_resuming_from_any_checkpoint_equals_the_uninterrupted_run(tmp_path, make) -> None:
    def partial(**changes: object):  # type: ignore[no-untyped-def]
        strategy = make()
        fed = federation(strategy=strategy, participation=0.7)
        _, module = fitted(tmp_path, module=EmbeddingNet(), fed=fed, **changes)
        return strategy, dict(module.state_dict())

    saver = ModelCheckpoint(
        dirpath=tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=9, filename="{step}"
    )
    strategy, whole = partial(callbacks=[saver], enable_checkpointing=True)
    files = sorted((tmp_path / "ckpt").glob("*.ckpt"))
    assert len(files) >= 5
    for path in files:
        again, state = partial(ckpt_path=str(path))
        assert_same(state, whole)
        assert_same(again.state_dict(), strategy.state_dict())


@pytest.mark.ddp
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROTOTYPE_STRATEGIES.keys() - {"fedmpa"}))
def test_two_processes_equal_one_to_the_last_bit(tmp_path, name) -> None:
    options = ("--prototypes", name, "--rounds", 2)
    (one,), _ = run(tmp_path / "one", *options)
    two, _ = run(tmp_path / "two", *options, "--devices", 2)
    assert len(two) == 2
    for result in two:
        assert_same(result, one)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedproto(pull_weight=-0.1), "pull_weight must be ≥ 0, got -0.1"),
        (lambda: fedgpd(distillation_weight=-0.1), "got -0.1 and 2"),
        (lambda: fedgpd(temperature=0.0), "got 0.5 and 0"),
        (lambda: fedgpd(bank_momentum=-0.1), "bank_momentum must be in"),
    ],
)
def test_impossible_numbers_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
