"""FedMPA in the loop: each part by itself, all of them against plain PyTorch, and nothing of it lost on the way."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from sklearn.metrics.pairwise import cosine_similarity
from test_loop import Recorder
from test_sharding import run
from torch import Tensor, nn
from toy_federation import (
    SIZES,
    EmbeddingNet,
    ToyData,
    assert_same,
    difference,
    federation,
    fedmpa,
    fitted,
    make_loaders,
    noisy,
    reference_fedavg,
)

from fedsynth.errors import ConfigError
from fedsynth.federated.client import ClientUpdate
from fedsynth.federated.strategies.fedmpa import FedMPA, parameter_names
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.seeding import derive_seed

MODALITIES = ("hidden", "fused")
ZERO = dict.fromkeys(MODALITIES, 0.0)
#: Every part off.
OFF: dict = {
    "pull_weights": ZERO,
    "repulsion_weights": ZERO,
    "aggregation": "records",
    "bank_momentum": 0.0,
    "server_momentum": 0.0,
}


def fit(root, strategy: FedMPA, **changes: object):  # type: ignore[no-untyped-def]
    return fitted(root, module=EmbeddingNet(), fed=federation(strategy=strategy), **changes)


def prototypes(*rows: list[float], count: tuple[int, ...] = (1, 1)) -> dict[str, Tensor]:
    """A message with the same prototypes in both modalities."""
    mean = torch.tensor(rows, dtype=torch.float32)
    tensors = dict.fromkeys(MODALITIES, mean)
    return ClassPrototypes(
        mean=tensors, count={name: torch.tensor(count) for name in MODALITIES}
    ).to_tensors()


PLAIN = prototypes([1.0, 0.0], [0.0, 1.0])


# Parts off, and limits


def test_with_all_parts_off_it_is_fedavg_to_the_last_bit(tmp_path) -> None:
    _, module = fit(tmp_path, fedmpa(**OFF))
    assert difference(module.state_dict(), reference_fedavg(3, 2, seed=3)) == 0.0


@pytest.mark.parametrize(
    "part",
    [
        {"pull_weights": dict.fromkeys(MODALITIES, 0.1)},
        {"repulsion_weights": dict.fromkeys(MODALITIES, 0.1)},
        {"aggregation": "similarity"},
        {"server_momentum": 0.5},
    ],
)
def test_every_part_by_itself_acts_from_the_second_round_on(tmp_path, part) -> None:
    for rounds, differs in ((1, False), (2, True)):
        _, module = fit(tmp_path, fedmpa(**{**OFF, **part}), max_epochs=rounds)
        averaged = reference_fedavg(rounds, 2, seed=3)
        moved = difference(module.state_dict(), averaged)
        # The first step with momentum is θ + (θ̄ - θ), which rounds once more than θ̄.
        assert moved > 1e-3 if differs else moved <= 1e-6


def test_one_client_without_momentum_and_alignment_is_fedavg_to_the_last_bit(tmp_path) -> None:
    sizes = {"b": SIZES["b"]}
    strategy = fedmpa(pull_weights=ZERO, repulsion_weights=ZERO, server_momentum=0.0)
    _, module = fit(tmp_path, strategy, data=ToyData(sizes))
    assert difference(module.state_dict(), reference_fedavg(3, 2, seed=3, sizes=sizes)) == 0.0


def test_the_order_clients_are_listed_in_does_not_matter(tmp_path) -> None:
    one, other = fedmpa(), fedmpa()
    _, first = fit(tmp_path, one)
    _, second = fit(tmp_path, other, data=ToyData(dict(reversed(SIZES.items()))))
    assert difference(first.state_dict(), second.state_dict()) == 0.0
    assert_same(one.state_dict(), other.state_dict())


# Against plain PyTorch


def reference(rounds: int, accumulate: int) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """The numbers of ``toy_federation.fedmpa`` in plain PyTorch and float64: (global state, bank)."""
    model, loaders, velocity, bank = EmbeddingNet().double(), make_loaders(), {}, {}
    names = {name for name, _ in model.named_parameters()}
    for round_ in range(rounds):
        start = {k: v.clone() for k, v in model.state_dict().items()}
        states, sent = [], []
        for client in sorted(loaders):
            model.load_state_dict(start)
            train_reference(model, loaders[client], bank, round_, client, accumulate)
            states.append({k: v.clone() for k, v in model.state_dict().items()})
            sent.append(local_prototypes(model, loaders[client].dataset))
        weights = np.array([SIZES[client] for client in sorted(loaders)], dtype=float)
        if bank:
            weights = weights_by_cosine([{m: own[m][0] for m in own} for own in sent], bank)
        weights /= weights.sum()
        for m in MODALITIES:
            counts = np.stack([own[m][1] for own in sent])[:, :, None]
            pooled = (counts * np.stack([own[m][0] for own in sent])).sum(0) / counts.sum(0)
            bank[m] = 0.7 * bank[m] + 0.3 * pooled if m in bank else pooled
        new = {}
        for name, old in start.items():
            if not old.is_floating_point():
                new[name] = torch.stack([state[name] for state in states]).max(0).values
                continue
            new[name] = sum(float(w) * s[name] for w, s in zip(weights, states, strict=True))
            if name in names:
                velocity[name] = 0.5 * velocity.get(name, 0.0) + new[name] - old
                new[name] = old + velocity[name]
        model.load_state_dict(new)
    return model.state_dict(), bank


def weights_by_cosine(sent: list[dict], bank: dict) -> np.ndarray:
    """softmax(2 softplus(s)) of clients that have both classes."""
    similarity = [np.mean([np.diag(cosine_similarity(own[m], bank[m])) for m in MODALITIES]) for own in sent]
    terms = np.exp(2.0 * np.log1p(np.exp(similarity)))
    return terms / terms.sum()


def train_reference(model, loader, bank, round_, client, accumulate) -> None:  # type: ignore[no-untyped-def]
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    torch.manual_seed(derive_seed(3, "client", round_, client))
    for epoch in (2 * round_, 2 * round_ + 1):
        loader.sampler.set_epoch(epoch)
        batches = list(loader)
        for index, (x, y) in enumerate(batches, start=1):
            logits, embeddings, present = model.answer(x.double())
            loss = nn.functional.cross_entropy(logits, y)
            for m, pull, repel in (("hidden", 0.2, 0.4), ("fused", 0.3, 0.5)):
                here = present.get(m, torch.ones(len(y), dtype=torch.bool)).nonzero().flatten().tolist()
                for i in here if bank else ():
                    z, c = embeddings[m][i], int(y[i])
                    own, wrong = torch.tensor(bank[m])[[c, 1 - c]]
                    loss = loss + pull / len(here) * (z - own).pow(2).sum()
                    if z.any():  # else it has no direction
                        chord = (z / z.norm() - wrong / wrong.norm()).norm()
                        loss = loss + repel / len(here) * torch.relu(1 - chord) ** 2
            (loss / accumulate).backward()
            if index % accumulate == 0 or index == len(batches):
                optimizer.step()
                optimizer.zero_grad()


@torch.no_grad()
def local_prototypes(model, records) -> dict[str, tuple[np.ndarray, np.ndarray]]:  # type: ignore[no-untyped-def]
    """Class means and counts by modality, over all records at once, in evaluation mode."""
    model.eval()
    dtype = next(model.parameters()).dtype
    _, embeddings, present = model.answer(records.x.to(dtype))
    found = {}
    for m, z in embeddings.items():
        here = present.get(m, torch.ones(len(z), dtype=torch.bool))
        rows = [z[here & (records.y == c)].double().numpy() for c in (0, 1)]
        means = [part.mean(0) if len(part) else np.zeros(z.shape[1]) for part in rows]
        found[m] = np.stack(means), np.array([len(part) for part in rows])
    return found


@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_parts_together_equal_plain_pytorch(tmp_path, accumulate) -> None:
    strategy = fedmpa()
    changes = {"precision": "64-true", "accumulate_grad_batches": accumulate}
    _, module = fit(tmp_path, strategy, **changes)
    wanted, bank = reference(3, accumulate)
    # The bank is stored in float32, which is what limits the agreement: about 2^-24 relative, over 3 rounds of Adam.
    assert difference(module.state_dict(), wanted) < 1e-4
    assert strategy.bank is not None
    for m in MODALITIES:
        assert np.allclose(strategy.bank.mean[m].numpy(), bank[m], atol=1e-4)


# Server momentum


@given(momentum=st.floats(0, 0.95), rate=st.floats(0.1, 2), rounds=st.integers(1, 5), shift=st.floats(-3, 3))
def test_momentum_follows_its_closed_form_on_parameters_only(momentum, rate, rounds, shift) -> None:
    """If clients always end a fixed shift d from where they start: θ_T = θ_0 + η d Σ_t (1 - m^t) / (1 - m)."""
    strategy = fedmpa(
        parameters=["w"], aggregation="records", server_momentum=momentum, server_learning_rate=rate
    )
    state = {"w": torch.ones(2), "running": torch.zeros(2), "tracked": torch.tensor(0)}
    for round_ in range(rounds):
        # Weights 1/4 and 3/4: both parts of the average matter.
        updates = [
            ClientUpdate(name, n, {"w": state["w"] + s * shift, "running": torch.full((2,), v),
                                   "tracked": torch.tensor(round_ + n)}, {}, 1, message=PLAIN)
            for name, n, s, v in (("a", 1, 4.0, 8.0), ("b", 3, 0.0, 4.0))
        ]  # fmt: skip
        state = strategy.aggregate(state, updates)
        assert state["running"].tolist() == [5.0, 5.0]
        assert state["tracked"].item() == round_ + 3
    gained = sum((1 - momentum**t) / (1 - momentum) for t in range(1, rounds + 1))
    # float32: each round rounds θ and v once.
    assert state["w"].tolist() == pytest.approx([1 + rate * shift * gained] * 2, rel=1e-5, abs=1e-5)
    assert strategy.velocity.keys() <= {"w"}


def test_without_momentum_the_learning_rate_interpolates() -> None:
    strategy = fedmpa(parameters=["w"], server_momentum=0.0, server_learning_rate=0.25)
    update = ClientUpdate("a", 1, {"w": torch.full((2,), 4.0)}, {}, 1, message=PLAIN)
    for wanted in (1.0, 1.75):
        found = strategy.aggregate({"w": torch.zeros(2) if wanted == 1.0 else torch.ones(2)}, [update])
        assert found["w"].tolist() == [wanted] * 2


def test_tied_weights_move_under_both_of_their_names() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert set(parameter_names(module)) == module.state_dict().keys()


def test_parameter_names_leave_out_buffers() -> None:
    assert "net.1.weight" in parameter_names(EmbeddingNet())
    assert not any("running" in name or "tracked" in name for name in parameter_names(EmbeddingNet()))


# Client weights


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_equal_similarities_weigh_all_clients_alike_whatever_their_size(records) -> None:
    strategy = fedmpa()
    updates = [ClientUpdate(i, n, {"w": torch.zeros(1)}, {}, 1, message=PLAIN) for i, n in enumerate(records)]
    assert strategy.client_weights(updates) == records  # no bank yet
    strategy.receive(updates)
    assert strategy.client_weights(updates) == pytest.approx([1 / len(records)] * len(records))


class Rounds(Callback):
    """What the server had and was sent in every round, and what it made of it."""

    def __init__(self, strategy: FedMPA) -> None:
        self.strategy, self.rounds = strategy, []  # type: ignore[var-annotated]

    def on_before_aggregate(self, trainer, module, updates) -> None:  # type: ignore[no-untyped-def]
        self.rounds.append({"before": self.strategy.bank, "updates": updates})

    def on_after_aggregate(self, trainer, module, updates) -> None:  # type: ignore[no-untyped-def]
        state = {k: v.clone() for k, v in module.state_dict().items()}
        self.rounds[-1] |= {"after": self.strategy.bank, "state": state}


def test_clients_are_compared_with_the_bank_before_their_own_round(tmp_path) -> None:
    strategy = fedmpa(server_momentum=0.0)
    record = Rounds(strategy)
    fit(tmp_path, strategy, callbacks=[record])
    first, *later = record.rounds
    assert first["before"] is None
    assert len(later) == 2
    for round_ in later:
        states = [update.state["net.0.weight"].double() for update in round_["updates"]]
        found = round_["state"]["net.0.weight"].double()
        distance = {}
        for which in ("before", "after"):
            sent = [ClassPrototypes.from_tensors(update.message).mean for update in round_["updates"]]
            weights = weights_by_cosine(sent, round_[which].mean)
            averaged = sum(float(w) * state for w, state in zip(weights, states, strict=True))
            distance[which] = float((averaged - found).abs().max())
        assert distance["before"] < 1e-6  # float32
        assert distance["after"] > 3 * distance["before"]


# Bank


@pytest.mark.parametrize("gamma", [0.0, 0.7, 0.999999])
@pytest.mark.parametrize("weighting", ["count", "uniform"])
def test_the_bank_follows_the_messages_of_every_round(tmp_path, gamma, weighting) -> None:
    strategy = fedmpa(bank_momentum=gamma, prototype_weighting=weighting)
    record = Rounds(strategy)
    fit(tmp_path, strategy, callbacks=[record])
    bank: dict[str, np.ndarray] = {}
    for round_ in record.rounds:
        for m in MODALITIES:
            means = np.stack([u.message[f"mean/{m}"].double().numpy() for u in round_["updates"]])
            counts = np.stack([u.message[f"count/{m}"].numpy() for u in round_["updates"]])[:, :, None]
            counts = counts if weighting == "count" else np.ones_like(counts)
            pooled = (means * counts).sum(0) / counts.sum(0)
            bank[m] = gamma * bank.get(m, pooled) + (1 - gamma) * pooled
            assert np.allclose(round_["after"].mean[m].numpy(), bank[m], atol=1e-6)
    first, last = record.rounds[0]["after"], record.rounds[-1]["after"]
    moved = float((first.mean["fused"] - last.mean["fused"]).abs().max())
    assert moved < 1e-4 if gamma > 0.99 else moved > 1e-2


class OneClassClients(ToyData):
    """Training data in which the named clients have no record of class 1."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self.names = names

    def train_dataloader(self):  # type: ignore[no-untyped-def]
        combined = super().train_dataloader()
        for name in self.names:
            combined.iterables[name].dataset.y.zero_()
        return combined


def test_a_client_without_a_class_sends_none_and_has_no_part_in_its_prototype(tmp_path) -> None:
    strategy = fedmpa(bank_momentum=0.0)
    record = Rounds(strategy)
    _, module = fit(tmp_path, strategy, data=OneClassClients("bd"), callbacks=[record])
    assert all(value.isfinite().all() for value in module.state_dict().values())
    for round_ in record.rounds:
        sent = {u.client: ClassPrototypes.from_tensors(u.message) for u in round_["updates"]}
        for name, one in sent.items():
            assert one.known("fused").tolist() == [True, name not in "bd"]
        for m in MODALITIES:
            holders = [one for name, one in sent.items() if name not in "bd"]
            counts = torch.stack([one.count[m][1] for one in holders]).double()
            means = torch.stack([one.mean[m][1] for one in holders]).double()
            pooled = (counts[:, None] * means).sum(0) / counts.sum()
            assert torch.allclose(round_["after"].mean[m][1].double(), pooled, atol=1e-6)


def test_a_class_that_nobody_has_is_neither_known_nor_repelled_from(tmp_path) -> None:
    strategy = fedmpa()
    _, module = fit(tmp_path, strategy, data=OneClassClients("abcde"))
    assert strategy.bank is not None
    assert strategy.bank.known("fused").tolist() == [True, False]
    without = fedmpa(repulsion_weights=ZERO)
    _, plain = fit(tmp_path, without, data=OneClassClients("abcde"))
    assert difference(module.state_dict(), plain.state_dict()) == 0.0  # there is no other class to repel from


# Resuming, several processes


@pytest.mark.parametrize("protection", [{}, noisy()], ids=["exact", "noisy"])
def test_resuming_from_any_checkpoint_equals_the_uninterrupted_run(tmp_path, protection) -> None:
    def partial(**changes: object):  # type: ignore[no-untyped-def]
        strategy = fedmpa(**protection)
        fed = federation(strategy=strategy, participation=0.7)
        trainer, module = fitted(tmp_path, module=EmbeddingNet(), fed=fed, **changes)
        return strategy, {**module.state_dict(), "step": torch.tensor(trainer.global_step)}

    saver = ModelCheckpoint(
        dirpath=tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=9, filename="{step}"
    )
    strategy, whole = partial(callbacks=[saver], enable_checkpointing=True)
    files = sorted((tmp_path / "ckpt").glob("*.ckpt"))
    assert len(files) >= 5
    assert len(strategy.uploads) == 4  # round(0.7 · 5)
    for path in files:
        again, state = partial(ckpt_path=str(path))
        assert_same(state, whole)
        assert_same(again.state_dict(), strategy.state_dict())


@pytest.mark.ddp
def test_two_processes_equal_one_to_the_last_bit(tmp_path) -> None:
    """With noise, which is drawn where the client is."""
    options = ("--prototypes", "fedmpa", "--noisy", "--rounds", 2)
    (one,), _ = run(tmp_path / "one", *options)
    two, _ = run(tmp_path / "two", *options, "--devices", 2)
    assert len(two) == 2
    assert one["strategy"]["uploads"].keys() == set(SIZES)
    for result in two:
        assert_same(result, one)


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pull_weights": {"hidden": 0.1}}, "pull_weights must give each of hidden, fused"),
        ({"repulsion_weights": {"hidden": 0.1, "fused": -1.0}}, "a number ≥ 0"),
        ({"aggregation": "votes"}, "similarity or records, got 'votes'"),
        ({"server_momentum": 1.0}, "server_momentum in"),
        ({"server_learning_rate": 0.0}, "server_learning_rate > 0"),
        ({"bank_momentum": 1.0}, "bank_momentum must be in"),
    ],
)
def test_impossible_numbers_are_refused(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        fedmpa(**changes)


@pytest.mark.parametrize(("names", "found"), [(["w", "other"], "'other'"), ([], "no parameter")])
def test_momentum_on_names_of_another_model_is_refused(names, found) -> None:
    update = ClientUpdate("a", 1, {"w": torch.zeros(1)}, {}, 1, message=PLAIN)
    with pytest.raises(ConfigError, match=f"{found}.*parameter_names"):
        fedmpa(parameters=names).aggregate({"w": torch.zeros(1)}, [update])


def test_recorder_sees_messages_of_all_clients_in_every_round(tmp_path) -> None:
    recorder = Recorder()
    fit(tmp_path, fedmpa(), callbacks=[recorder])
    assert [u.client for u in recorder.updates] == list("abcde") * 3
    assert all(u.message.keys() == PLAIN.keys() for u in recorder.updates)
