"""A client's message: prototypes of its own records by its own model, and neither training nor others notice."""

import itertools
import math

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from test_fedmpa import OFF, local_prototypes
from torch import Tensor, nn
from toy_federation import (
    NOISE_SEED,
    PROTOTYPE_STRATEGIES,
    SIZES,
    EmbeddingNet,
    TinyNet,
    ToyData,
    assert_same,
    difference,
    federation,
    fedmpa,
    fedproto,
    fitted,
    make_loaders,
    noisy,
    reference_fedavg,
)

from fedsynth.errors import BudgetError, ConfigError
from fedsynth.federated.client import ClientUpdate
from fedsynth.federated.messages import num_bytes, round_traffic
from fedsynth.federated.strategies.base import Strategy
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.privacy.prototype_release import PrototypeMechanism

MODALITIES = ("hidden", "fused")


class Updates(Callback):
    """Every update, in order."""

    def __init__(self) -> None:
        self.all: list[ClientUpdate] = []

    def on_client_end(self, trainer, module, update) -> None:  # type: ignore[no-untyped-def]
        self.all.append(update)

    def rounds(self) -> list[dict]:
        """Messages by client, by round."""
        size = len(SIZES)
        return [
            {u.client: u.message for u in self.all[at : at + size]} for at in range(0, len(self.all), size)
        ]


class WatchedNet(EmbeddingNet):
    """Notes what ``embed`` is given, and in which state."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.modes: list[tuple[bool, bool]] = []
        self.training_modes: list[bool] = []

    def embed(self, batch):  # type: ignore[no-untyped-def]
        self.seen.append(batch[0].clone())
        self.modes.append((any(part.training for part in self.modules()), torch.is_grad_enabled()))
        return super().embed(batch)

    def training_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
        self.training_modes.append(all(part.training for part in self.modules()) and torch.is_grad_enabled())
        return super().training_step(batch, batch_idx)


def fit(root, strategy: Strategy, **changes: object):  # type: ignore[no-untyped-def]
    return fitted(root, **{"module": EmbeddingNet(), **changes}, fed=federation(strategy=strategy))


# What is in a message


def test_prototypes_are_means_over_all_records_of_the_trained_client_in_evaluation_mode(tmp_path) -> None:
    updates = Updates()
    fit(tmp_path, fedmpa(), callbacks=[updates])
    assert len(updates.all) == 3 * len(SIZES)
    model, loaders = EmbeddingNet(), make_loaders()
    for update in updates.all:
        model.load_state_dict(update.state)
        for m, (mean, count) in local_prototypes(model, loaders[update.client].dataset).items():
            assert update.message[f"count/{m}"].tolist() == count.tolist()
            # float32 embeddings of magnitude 1 to 10, in batches of other sizes
            assert np.allclose(update.message[f"mean/{m}"].numpy(), mean, rtol=1e-5, atol=1e-5)
        assert int(update.message["count/fused"].sum()) == SIZES[update.client]


def test_every_record_is_embedded_exactly_once_a_round(tmp_path) -> None:
    module = WatchedNet()
    fit(tmp_path, fedproto(), module=module, max_epochs=1)
    own = torch.cat([loader.dataset.x for _, loader in sorted(make_loaders().items())])
    seen = torch.cat(module.seen)
    order = [rows[:, 0].argsort() for rows in (seen, own)]
    assert torch.equal(seen[order[0]], own[order[1]])


def test_embedding_is_in_evaluation_mode_without_gradients_and_training_goes_on_in_training_mode(
    tmp_path,
) -> None:
    module = WatchedNet()
    fit(tmp_path, fedproto(), module=module)
    assert set(module.modes) == {(False, False)}
    assert set(module.training_modes) == {True}


def test_batch_limits_hold_for_prototypes_too(tmp_path) -> None:
    module, updates = WatchedNet(), Updates()
    fit(tmp_path, fedproto(), module=module, callbacks=[updates], max_epochs=1, limit_train_batches=2)
    batches = [min(2, len(loader)) for loader in make_loaders().values()]
    assert len(module.seen) == sum(batches)
    # Two batches of six, but a client of 13 or fewer records may end with one of seven.
    assert {u.client: int(u.message["count/fused"].sum()) for u in updates.all} == {
        "a": 13, "b": 12, "c": 8, "d": 12, "e": 12
    }  # fmt: skip


# What a message leaves alone


@pytest.mark.parametrize("name", sorted(PROTOTYPE_STRATEGIES))
def test_the_global_random_state_neither_matters_nor_moves(tmp_path, name) -> None:
    class DrawingNet(EmbeddingNet):
        """Draws while it embeds, as a user's transform might."""

        def embed(self, batch):  # type: ignore[no-untyped-def]
            embeddings, *rest = super().embed(batch)
            return {m: z + 0.01 * torch.rand_like(z) for m, z in embeddings.items()}, *rest

    class Draw(Callback):
        def on_train_start(self, *args: object) -> None:
            torch.manual_seed(11)

        def on_train_end(self, *args: object) -> None:
            self.drawn = torch.rand(3).tolist()

    draw = Draw()
    one, other = (PROTOTYPE_STRATEGIES[name](**noisy()) for _ in range(2))
    fit(tmp_path, one, module=DrawingNet())
    fit(tmp_path, other, module=DrawingNet(), callbacks=[draw])
    assert_same(one.state_dict(), other.state_dict())
    assert draw.drawn == torch.rand(3, generator=torch.Generator().manual_seed(11)).tolist()


def test_the_clients_model_is_the_same_with_and_without_a_message(tmp_path) -> None:
    _, module = fit(tmp_path, fedmpa(**OFF), max_epochs=1)
    assert difference(module.state_dict(), reference_fedavg(1, 2, seed=3)) == 0.0  # BatchNorm's counters too


def test_a_strategy_that_sends_nothing_costs_no_pass_over_the_data(tmp_path) -> None:
    module, updates = WatchedNet(), Updates()
    fit(tmp_path, FedAvg(), module=module, callbacks=[updates])
    assert module.seen == []
    assert all(update.message == {} for update in updates.all)


def test_the_module_is_back_in_training_mode_after_an_error(tmp_path) -> None:
    class Broken(EmbeddingNet):
        def embed(self, batch):  # type: ignore[no-untyped-def]
            raise ValueError("broken on purpose")

    module = Broken()
    with pytest.raises(ValueError, match="broken on purpose"):
        fit(tmp_path, fedproto(), module=module)
    assert all(part.training for part in module.modules())


# Lightning's features


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions_send_prototypes_of_their_own_embeddings(tmp_path, precision) -> None:
    updates, strategy = Updates(), fedmpa()
    _, module = fit(tmp_path, strategy, callbacks=[updates], precision=precision)
    assert all(value.isfinite().all() for value in module.state_dict().values())
    model, loaders = EmbeddingNet().to(updates.all[0].state["net.0.weight"].dtype), make_loaders()
    tolerance = 0.05 if precision == "bf16-mixed" else 1e-6  # 8 bits of mantissa, or float32 of the message
    for update in updates.all:
        model.load_state_dict(update.state)
        for m, (mean, _) in local_prototypes(model, loaders[update.client].dataset).items():
            sent = update.message[f"mean/{m}"]
            assert sent.dtype == torch.float32
            assert np.allclose(sent.numpy(), mean, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("where", ["module", "data"])
def test_batches_pass_the_same_transfer_hooks_as_in_training(tmp_path, where) -> None:
    class Shift:
        def on_before_batch_transfer(self, batch, dataloader_idx):  # type: ignore[no-untyped-def]
            return batch[0] + 100.0, batch[1]

        def on_after_batch_transfer(self, batch, dataloader_idx):  # type: ignore[no-untyped-def]
            return batch[0] + 1000.0, batch[1]

    class ShiftedNet(Shift, WatchedNet):
        pass

    class ShiftedData(Shift, ToyData):
        pass

    module = ShiftedNet() if where == "module" else WatchedNet()
    data = ShiftedData() if where == "data" else ToyData()
    fit(tmp_path, fedproto(), module=module, data=data, max_epochs=1)
    assert all(float(x.min()) > 1050 and float(x.max()) < 1150 for x in module.seen)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_objective_gets_the_whole_loss_and_the_steps_own_embeddings(tmp_path, accumulate) -> None:
    class Probe(FedAvg):
        found: list

        def local_objective(self, loss, module, global_state, step):  # type: ignore[no-untyped-def]
            assert step.keys() == {"embeddings", "label", "present"}
            assert step["embeddings"]["fused"].requires_grad
            logits = module.net[4](step["embeddings"]["fused"])
            self.found.append((float(loss), float(nn.functional.cross_entropy(logits, step["label"]))))
            return loss

    probe = Probe()
    probe.found = []
    fit(tmp_path, probe, max_epochs=1, accumulate_grad_batches=accumulate)
    assert len(probe.found) == 32
    assert all(given == pytest.approx(wanted, rel=1e-5) for given, wanted in probe.found)


def test_the_logged_training_loss_is_the_tasks_alone(tmp_path) -> None:
    """Else alignment would make a strategy look worse than it is."""
    plain, aligned = (
        fit(tmp_path, fedmpa(**{**OFF, "pull_weights": dict.fromkeys(MODALITIES, w)}), max_epochs=2)[0]
        for w in (0.0, 1e-9)
    )
    for name in ("train/loss", "client/b/train_loss"):
        assert float(aligned.callback_metrics[name]) == pytest.approx(
            float(plain.callback_metrics[name]), rel=1e-3
        )
    heavy, _ = fit(tmp_path, fedmpa(**{**OFF, "pull_weights": dict.fromkeys(MODALITIES, 1e6)}), max_epochs=2)
    assert float(heavy.callback_metrics["train/loss"]) < 100


# Traffic


def test_traffic_is_the_size_of_what_is_sent_by_hand(tmp_path) -> None:
    weights = 5 * 8 + 8 + 2 * 8 + 2 * 8 + 8 * 2 + 2  # linear, BatchNorm with statistics, linear; float32
    model = 4 * weights + 8  # and BatchNorm's int64 counter
    means, counts = 2 * (2 * 8 * 4), 2 * (2 * 8)  # modalities × classes × dim × bytes; int64
    for strategy, up, down in (
        (FedAvg(), model, model),
        (fedmpa(), model + means + counts, model + means),
        (fedproto(), (means + counts) / 2, means / 2),
    ):
        trainer, _ = fit(tmp_path, strategy, max_epochs=2)
        assert float(trainer.callback_metrics["traffic/bytes_up"]) == up
        assert float(trainer.callback_metrics["traffic/bytes_down"]) == down


def test_no_bank_comes_down_before_the_first_is_made(tmp_path) -> None:
    trainer, module = fit(tmp_path, fedmpa(), max_epochs=1)
    model = num_bytes(module.state_dict().values())
    assert float(trainer.callback_metrics["traffic/bytes_down"]) == model


def test_traffic_up_is_the_mean_over_the_cohort() -> None:
    updates = [ClientUpdate(name, 1, {"w": torch.zeros(n)}, {}, 1) for name, n in (("a", 1), ("b", 4))]
    state = {"w": torch.zeros(3, dtype=torch.float64)}
    assert round_traffic(FedAvg(), state, updates) == {
        "traffic/bytes_up": 10.0,
        "traffic/bytes_down": 24.0,
    }


def test_bytes_depend_on_the_type() -> None:
    tensors = [torch.zeros(3, 2), torch.zeros(5, dtype=torch.int64), torch.zeros(7, dtype=torch.bool)]
    assert num_bytes(tensors) == 24 + 40 + 7


# Noise


def messages(root, **changes: object) -> list[dict]:  # type: ignore[no-untyped-def]
    """Messages of a training that prototypes do not influence."""
    updates = Updates()
    fit(root, fedmpa(**{**OFF, **changes}), callbacks=[updates])
    return updates.rounds()


@pytest.fixture(scope="module")
def noise(tmp_path_factory) -> dict[tuple[int, str, str], Tensor]:  # type: ignore[no-untyped-def]
    """Noise by (round, client, modality), scaled by its claimed standard deviation."""
    root, protection = tmp_path_factory.mktemp("noise"), noisy()
    sent, exact = messages(root, **protection), messages(root, **noisy(epsilon=math.inf))
    found = {}
    for round_, client, m in itertools.product(range(3), SIZES, MODALITIES):
        noised, clipped = sent[round_][client], exact[round_][client]
        assert noised[f"count/{m}"].tolist() == clipped[f"count/{m}"].tolist()
        std = [protection["mechanism"].noise_std(n) for n in clipped[f"count/{m}"].tolist()]
        found[round_, client, m] = (noised[f"mean/{m}"] - clipped[f"mean/{m}"]) / torch.tensor(std)[:, None]
    return found


def test_noise_has_the_claimed_size_and_is_new_for_every_client_round_class_and_modality(noise) -> None:
    rows = torch.cat(list(noise.values()))  # [60, dim]
    assert rows.shape == (3 * len(SIZES) * 2 * 2, 8)
    # 480 values: the deviation of their standard deviation is 1 / √960 = .032
    assert abs(float(rows.std()) - 1) < 0.15
    scaled = rows / rows.norm(dim=1, keepdim=True)
    cosines = (scaled @ scaled.T - torch.eye(len(rows))).abs()
    assert float(cosines.max()) < 0.99  # 1 for noise that is used twice


def test_clipped_means_stay_within_the_radius(tmp_path) -> None:
    for round_ in messages(tmp_path, **noisy(epsilon=math.inf)):
        for sent in round_.values():
            assert all(float(sent[f"mean/{m}"].norm(dim=1).max()) <= 2.0 * (1 + 2**-22) for m in MODALITIES)


def test_another_noise_seed_is_other_noise_and_nothing_else(tmp_path) -> None:
    (one, *_), (other, *_) = (
        messages(tmp_path, **{**noisy(), "noise_seed": seed}, ) for seed in (1, 2)
    )  # fmt: skip
    for client in SIZES:
        assert_same(one[client]["count/fused"], other[client]["count/fused"])
        assert float((one[client]["mean/fused"] - other[client]["mean/fused"]).abs().min()) > 0


def test_noise_of_a_finished_client_survives_a_checkpoint_and_that_of_the_others_is_the_same(
    tmp_path,
) -> None:
    saver = ModelCheckpoint(
        dirpath=tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=7, filename="{step}"
    )
    updates = Updates()
    fit(tmp_path, fedmpa(**noisy()), callbacks=[updates, saver], enable_checkpointing=True)
    whole = {(at // len(SIZES), u.client): u.message for at, u in enumerate(updates.all)}
    for path in sorted((tmp_path / "ckpt").glob("*.ckpt"))[1::4]:
        again = Updates()
        fit(tmp_path, fedmpa(**noisy()), callbacks=[again], ckpt_path=str(path))
        done = len(updates.all) - len(again.all)
        assert done > 0
        for at, update in enumerate(again.all, start=done):
            assert_same(update.message, whole[at // len(SIZES), update.client])


def leaves(value: object):  # type: ignore[no-untyped-def]
    if isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(leaves, [*value.keys(), *value.values()]))
    elif isinstance(value, list | tuple):
        yield from itertools.chain.from_iterable(map(leaves, value))
    elif isinstance(value, Tensor):
        yield from value.flatten().tolist()
    else:
        yield value


@pytest.mark.parametrize("name", sorted(PROTOTYPE_STRATEGIES))
def test_no_checkpoint_holds_the_noise_seed(tmp_path, name) -> None:
    saver = ModelCheckpoint(
        dirpath=tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=40, filename="{step}"
    )
    strategy = PROTOTYPE_STRATEGIES[name](**noisy())
    fit(tmp_path, strategy, callbacks=[saver], enable_checkpointing=True)
    paths = list((tmp_path / "ckpt").glob("*.ckpt"))
    assert paths
    for path in paths:
        found = list(leaves(torch.load(path, weights_only=True)))
        assert len(found) > 500
        assert NOISE_SEED not in found
        assert NOISE_SEED.to_bytes(6, "little") not in path.read_bytes()


def test_rounds_that_were_not_paid_for_are_refused(tmp_path) -> None:
    with pytest.raises(BudgetError, match="round 3 were not paid for"):
        fit(tmp_path, fedproto(**noisy()), max_epochs=4)


def test_classes_of_few_records_are_not_sent(tmp_path) -> None:
    mechanism = PrototypeMechanism(
        epsilon=4.0, delta=1e-5, clip_radius=2.0, num_rounds=3, num_modalities=1, min_class_records=10
    )
    updates = Updates()
    fit(tmp_path, fedproto(mechanism=mechanism), callbacks=[updates], max_epochs=1)
    labels = {
        client: torch.bincount(loader.dataset.y, minlength=2) for client, loader in make_loaders().items()
    }
    assert {u.client: u.message["count/fused"].tolist() for u in updates.all} == {
        client: [n if n >= 10 else 0 for n in count.tolist()] for client, count in labels.items()
    }
    assert any(0 in u.message["count/fused"].tolist() for u in updates.all)


# Refusals


class WithoutLabels(EmbeddingNet):
    def training_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
        returned = super().training_step(batch, batch_idx)
        del returned["label"]
        return returned


class WithoutFused(EmbeddingNet):
    def answer(self, x):  # type: ignore[no-untyped-def]
        logits, embeddings, present = super().answer(x)
        return logits, {"hidden": embeddings["hidden"]}, present


class StepOfTinyNet(EmbeddingNet):
    training_step = TinyNet.training_step  # type: ignore[assignment]


@pytest.mark.parametrize("name", sorted(PROTOTYPE_STRATEGIES))
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (StepOfTinyNet, "training_step returned no embeddings and no label. It must return a dictionary"),
        (WithoutLabels, "training_step returned no label"),
        (WithoutFused, "training_step returned embeddings of hidden only: 'fused' is missing"),
    ],
)
def test_a_training_step_that_returns_too_little_is_refused(tmp_path, name, module, said) -> None:
    with pytest.raises(ConfigError, match=said):
        fit(tmp_path, PROTOTYPE_STRATEGIES[name](), module=module(), max_epochs=1)


def test_a_module_without_embed_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"FedMPA needs a module with embed\(batch\), TinyNet has none"):
        fit(tmp_path, fedmpa(**OFF), module=TinyNet(), max_epochs=1)


def test_an_embed_that_returns_too_little_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"WithoutFused\.embed returned embeddings of hidden only"):
        fit(tmp_path, fedmpa(**OFF), module=WithoutFused(), max_epochs=1)
