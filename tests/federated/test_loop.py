"""A round is FedAvg as plain PyTorch computes it, and Lightning's features act per client or per round."""

import csv
import math

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader
from toy_federation import (
    SIZES,
    Records,
    TinyNet,
    ToyData,
    difference,
    federation,
    fitted,
    make_loaders,
    make_trainer,
    reference_fedavg,
)

from fedsynth.errors import ConfigError, DataError
from fedsynth.federated.client import canonical_order, sample_cohort
from fedsynth.federated.roster import Roster, mean_metrics
from fedsynth.federated.strategies.fedavg import FedAvg

STEPS = {name: len(loader) for name, loader in make_loaders().items()}  # batches of one local epoch


class Recorder(Callback):
    """What happened, in order, and the model at every hook."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.updates: list = []
        self.rates: list[float] = []
        self.training_modes: list[bool] = []
        self.models: dict[str, dict] = {}

    def _note(self, module, event: str) -> None:  # type: ignore[no-untyped-def]
        self.events.append(event)
        self.models[event] = {k: v.clone() for k, v in module.state_dict().items()}

    def on_train_epoch_start(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
        self._note(module, "round start")

    def on_client_start(self, trainer, module, client) -> None:  # type: ignore[no-untyped-def]
        self._note(module, f"start {client}")

    def on_train_batch_end(self, trainer, module, *args: object) -> None:  # type: ignore[no-untyped-def]
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.training_modes.append(all(m.training for m in module.modules()))

    def on_client_end(self, trainer, module, update) -> None:  # type: ignore[no-untyped-def]
        self._note(module, f"end {update.client}")
        self.updates.append(update)

    def on_before_aggregate(self, trainer, module, updates) -> None:  # type: ignore[no-untyped-def]
        self._note(module, "before " + "".join(str(u.client) for u in updates))

    def on_after_aggregate(self, trainer, module, updates) -> None:  # type: ignore[no-untyped-def]
        self._note(module, "after " + "".join(str(u.client) for u in updates))

    def on_validation_start(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
        self._note(module, "validation")

    def on_train_epoch_end(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
        self._note(module, "round end")


@pytest.mark.parametrize(("rounds", "local_epochs"), [(3, 2), (2, 1)])
def test_equals_plain_pytorch_fedavg_to_the_last_bit(tmp_path, rounds, local_epochs) -> None:
    trainer, module = fitted(tmp_path, max_epochs=rounds, fed=federation(local_epochs=local_epochs))
    assert difference(module.state_dict(), reference_fedavg(rounds, local_epochs, seed=3)) == 0.0
    assert trainer.global_step == rounds * local_epochs * sum(STEPS.values())
    assert trainer.current_epoch == rounds


def test_the_reference_would_notice_batchnorm_buffers_that_are_not_averaged(tmp_path) -> None:
    class ParametersOnly(FedAvg):
        def aggregate(self, global_state, updates):  # type: ignore[no-untyped-def]
            averaged = super().aggregate(global_state, updates)
            return {k: global_state[k] if "running" in k else v for k, v in averaged.items()}

    reference = reference_fedavg(1, 2, seed=3)
    _, good = fitted(tmp_path, max_epochs=1)
    _, bad = fitted(tmp_path, max_epochs=1, fed=federation(strategy=ParametersOnly()))
    assert torch.equal(good.state_dict()["net.1.running_var"], reference["net.1.running_var"])
    assert torch.equal(bad.state_dict()["net.1.running_var"], torch.ones(8))
    assert difference(bad.state_dict(), reference) > 0.1


def test_one_client_is_plain_lightning_training(tmp_path) -> None:
    module = TinyNet(dropout=0.0)
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, train_dataloaders=make_loaders({"a": 13})["a"])
    _, alone = fitted(
        tmp_path, module=TinyNet(dropout=0.0), data=ToyData({"a": 13}), max_epochs=1,
        fed=federation(local_epochs=3),
    )  # fmt: skip
    assert difference(alone.state_dict(), module.state_dict()) == 0.0


def test_the_order_clients_are_listed_in_does_not_matter(tmp_path) -> None:
    _, one = fitted(tmp_path)
    _, other = fitted(tmp_path, data=ToyData(dict(reversed(SIZES.items()))))
    assert difference(one.state_dict(), other.state_dict()) == 0.0


def test_the_global_random_stream_neither_matters_nor_moves(tmp_path) -> None:
    class Draw(Callback):
        drawn: list

        def on_train_start(self, *args: object) -> None:
            torch.manual_seed(11)

        def on_train_end(self, *args: object) -> None:
            self.drawn = torch.rand(3).tolist()

    draw = Draw()
    _, one = fitted(tmp_path)
    _, other = fitted(tmp_path, callbacks=[draw])
    assert difference(one.state_dict(), other.state_dict()) == 0.0
    assert draw.drawn == torch.rand(3, generator=torch.Generator().manual_seed(11)).tolist()


def test_clients_train_in_train_mode_after_an_evaluation_left_the_module_in_eval_mode(tmp_path) -> None:
    recorder, module = Recorder(), TinyNet()
    module.eval()
    _, module = fitted(tmp_path, module=module, callbacks=[recorder])
    assert all(recorder.training_modes)
    assert difference(module.state_dict(), reference_fedavg(3, 2, seed=3)) == 0.0


def test_a_hook_that_leaves_eval_mode_between_clients_does_not_freeze_the_next_one(tmp_path) -> None:
    class Evaluate(Callback):
        def on_client_end(self, trainer, module, update) -> None:  # type: ignore[no-untyped-def]
            module.eval()

    _, module = fitted(tmp_path, callbacks=[Evaluate()])
    assert difference(module.state_dict(), reference_fedavg(3, 2, seed=3)) == 0.0


def test_a_second_fit_after_validate_still_updates_batchnorm(tmp_path) -> None:
    trainer, module = fitted(tmp_path, max_epochs=1)
    trainer.validate(module, datamodule=ToyData(), verbose=False)
    module.eval()
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=ToyData())
    assert difference(module.state_dict(), reference_fedavg(2, 2, seed=3)) == 0.0


def test_hooks_come_in_order_and_see_the_global_model(tmp_path) -> None:
    recorder = Recorder()
    fitted(tmp_path, max_epochs=1, callbacks=[recorder])
    clients = [event for name in "abcde" for event in (f"start {name}", f"end {name}")]
    expected = ["round start", *clients, "before abcde", "after abcde", "validation", "round end"]
    assert recorder.events == expected
    start, new = recorder.models["round start"], recorder.models["after abcde"]
    assert all(difference(recorder.models[event], start) == 0 for event in [*clients, "before abcde"])
    assert difference(new, start) > 0
    assert difference(recorder.models["validation"], new) == 0
    assert all(difference(update.state, start) > 0 for update in recorder.updates)


def test_a_module_may_define_the_hooks_too(tmp_path) -> None:
    class Listening(TinyNet):
        def on_client_end(self, update) -> None:  # type: ignore[no-untyped-def]
            self.heard = [*getattr(self, "heard", []), update.client]

    _, module = fitted(tmp_path, max_epochs=1, module=Listening())
    assert module.heard == list("abcde")


def test_updates_count_records_and_steps(tmp_path) -> None:
    recorder = Recorder()
    fitted(tmp_path, max_epochs=1, callbacks=[recorder])
    assert {u.client: u.num_records for u in recorder.updates} == SIZES
    assert {u.client: u.steps for u in recorder.updates} == {name: 2 * n for name, n in STEPS.items()}


def test_partial_participation_trains_the_drawn_cohort_only(tmp_path) -> None:
    recorder, fed = Recorder(), federation(participation=0.4)
    trainer, _ = fitted(tmp_path, fed=fed, callbacks=[recorder])
    names, trained = sorted(SIZES), iter(u.client for u in recorder.updates)
    for round_ in range(3):
        for position in sample_cohort(5, 0.4, fed.seed, round_):
            assert next(trained) == names[position]
    assert next(trained, None) is None
    assert trainer.global_step == sum(u.steps for u in recorder.updates)


def test_batch_limits_act_per_client_and_leave_its_weight_alone(tmp_path) -> None:
    for limit, expected in ((2, 2), (0.5, None)):
        recorder = Recorder()
        fitted(tmp_path, max_epochs=1, callbacks=[recorder], limit_train_batches=limit)
        steps = {u.client: u.steps for u in recorder.updates}
        assert steps == {name: 2 * min(n, expected or n // 2) for name, n in STEPS.items()}
        assert {u.client: u.num_records for u in recorder.updates} == SIZES


@pytest.mark.parametrize(("batches", "steps"), [(True, 1), (3, 3)])
def test_fast_dev_run_sends_its_batches_through_every_client_and_aggregates(tmp_path, batches, steps) -> None:
    recorder = Recorder()
    trainer, _ = fitted(tmp_path, fast_dev_run=batches, callbacks=[recorder], fed=federation(local_epochs=1))
    assert [u.steps for u in recorder.updates] == [min(steps, STEPS[name]) for name in "abcde"]
    assert "after abcde" in recorder.events
    assert trainer.current_epoch == 1


def test_no_batches_means_no_training(tmp_path) -> None:
    trainer, module = fitted(tmp_path, limit_train_batches=0)
    assert trainer.global_step == 0
    assert difference(module.state_dict(), TinyNet().state_dict()) == 0.0


def test_gradient_accumulation_ends_with_the_client(tmp_path) -> None:
    recorder = Recorder()
    trainer, _ = fitted(tmp_path, max_epochs=1, accumulate_grad_batches=2, callbacks=[recorder])
    steps = {u.client: u.steps for u in recorder.updates}
    assert steps == {name: 2 * math.ceil(n / 2) for name, n in STEPS.items()}
    assert trainer.global_step == sum(steps.values())


def test_max_steps_and_early_stopping_act_at_the_end_of_a_round(tmp_path) -> None:
    trainer, _ = fitted(tmp_path, max_steps=40)
    assert trainer.global_step == 64
    stop = EarlyStopping("val/loss", patience=1, mode="max", min_delta=1e6)
    trainer, _ = fitted(tmp_path, max_epochs=10, callbacks=[stop])
    assert trainer.current_epoch == 2
    assert trainer.global_step == 64


def test_step_schedules_restart_with_every_client_and_epoch_schedules_step_once_a_round(tmp_path) -> None:
    recorder = Recorder()
    fitted(tmp_path, module=TinyNet("step"), max_epochs=2, callbacks=[recorder])
    expected = [0.05 * 0.9 ** (i + 1) for _ in range(2) for name in "abcde" for i in range(2 * STEPS[name])]
    assert recorder.rates == pytest.approx(expected)
    recorder = Recorder()
    fitted(tmp_path, module=TinyNet("epoch"), max_epochs=3, callbacks=[recorder])
    assert recorder.rates == pytest.approx([0.05 * 0.9**r for r in range(3) for _ in range(32)])


def test_a_plateau_schedule_watches_the_global_model(tmp_path) -> None:
    recorder = Recorder()
    fitted(tmp_path, module=TinyNet("plateau"), max_epochs=4, callbacks=[recorder])
    per_round = [recorder.rates[32 * r : 32 * (r + 1)] for r in range(4)]
    assert all(len(set(rates)) == 1 for rates in per_round)
    assert per_round[3][0] < 0.05


def test_gradient_clipping_bounds_every_step(tmp_path) -> None:
    class Norms(Callback):
        largest = 0.0

        def on_before_optimizer_step(self, trainer, module, optimizer) -> None:  # type: ignore[no-untyped-def]
            self.unclipped = max(float(p.grad.norm()) for p in module.parameters())

        def on_before_zero_grad(self, trainer, module, optimizer) -> None:  # type: ignore[no-untyped-def]
            grads = [p.grad.norm() for p in module.parameters() if p.grad is not None]
            if grads:
                self.largest = max(self.largest, float(torch.stack(grads).norm()))

    norms = Norms()
    fitted(tmp_path, max_epochs=1, gradient_clip_val=0.01, callbacks=[norms])
    assert 0 < norms.largest <= 0.0101


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions_train(tmp_path, precision) -> None:
    trainer, module = fitted(tmp_path, max_epochs=1, precision=precision)
    assert trainer.global_step == 64 // 2
    assert difference(module.state_dict(), TinyNet().state_dict()) > 0
    assert all(value.isfinite().all() for value in module.state_dict().values())


def test_manual_optimization_gives_the_same_model(tmp_path) -> None:
    class Manual(TinyNet):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    trainer, module = fitted(tmp_path, module=Manual())
    assert trainer.global_step == 96
    assert difference(module.state_dict(), reference_fedavg(3, 2, seed=3)) == 0.0


class Proximal(FedAvg):
    """FedProx in three lines: enough to see the local objective at work."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def local_objective(self, loss, module, global_state, step):  # type: ignore[no-untyped-def]
        drift = sum(((p - global_state[n]) ** 2).sum() for n, p in module.named_parameters())
        return loss + self.mu / 2 * drift


def test_the_local_objective_is_what_clients_minimize(tmp_path) -> None:
    drifts = []
    for mu in (0.0, 100.0):
        recorder = Recorder()
        fitted(tmp_path, max_epochs=1, callbacks=[recorder], fed=federation(strategy=Proximal(mu)))
        start = recorder.models["round start"]
        drifts.append(max((u.state["net.0.weight"] - start["net.0.weight"]).norm() for u in recorder.updates))
    assert drifts[1] < drifts[0] / 3
    _, zero = fitted(tmp_path, fed=federation(strategy=Proximal(0.0)))
    _, none = fitted(tmp_path)
    assert difference(zero.state_dict(), none.state_dict()) == 0.0


def test_a_client_objective_needs_automatic_optimization(tmp_path) -> None:
    module = TinyNet()
    module.automatic_optimization = False
    with pytest.raises(ConfigError, match="Proximal changes the clients' loss"):
        fitted(tmp_path, module=module, fed=federation(strategy=Proximal(1.0)))


def test_client_losses_are_logged_and_their_mean_weighs_records(tmp_path) -> None:
    recorder = Recorder()
    trainer, _ = fitted(tmp_path, max_epochs=1, callbacks=[recorder])
    losses = {u.client: u.metrics["train_loss"] for u in recorder.updates}
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
    assert {k: metrics[f"client/{k}/train_loss"] for k in SIZES} == pytest.approx(losses)
    mean = sum(SIZES[k] * loss for k, loss in losses.items()) / sum(SIZES.values())
    assert metrics["train/loss"] == pytest.approx(mean)
    logged = sum(u.num_records * u.metrics["fit/loss"] for u in recorder.updates) / sum(SIZES.values())
    assert metrics["fit/loss"] == pytest.approx(logged)
    assert losses["a"] != losses["b"]


def test_the_csv_axis_counts_steps_and_never_goes_back(tmp_path) -> None:
    class Chatty(TinyNet):
        def training_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
            loss = super().training_step(batch, batch_idx)
            self.log("step_loss", loss, on_step=True, on_epoch=False)
            return loss

    logger = CSVLogger(tmp_path, name="", version="csv")
    fitted(tmp_path, module=Chatty(), logger=logger, max_epochs=2, log_every_n_steps=1)
    with open(tmp_path / "csv" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(steps)
    assert [int(row["step"]) for row in rows if row["step_loss"]] == list(range(64))
    assert [int(row["step"]) for row in rows if row["val/loss"]] == [31, 63]
    assert [int(row["step"]) for row in rows if row["client/a/train_loss"]] == [31, 63]


def test_the_best_checkpoint_is_the_best_global_model(tmp_path) -> None:
    recorder = Recorder()
    best = ModelCheckpoint(tmp_path / "best", monitor="val/loss", filename="{epoch}")
    trainer, module = fitted(tmp_path, callbacks=[recorder, best], enable_checkpointing=True)
    data = ToyData()
    (result,) = trainer.validate(module, datamodule=data, ckpt_path="best", verbose=False)
    assert result["val/loss"] == pytest.approx(float(best.best_model_score))


def test_validation_runs_every_nth_round(tmp_path) -> None:
    recorder = Recorder()
    fitted(tmp_path, max_epochs=4, check_val_every_n_epoch=2, callbacks=[recorder])
    assert recorder.events.count("validation") == 2


def test_reloading_barebones_and_profiling_leave_the_result_alone(tmp_path) -> None:
    _, plain = fitted(tmp_path)
    for changes in ({"reload_dataloaders_every_n_epochs": 1}, {"barebones": True}, {"profiler": "simple"}):
        if "barebones" in changes:
            changes |= {"num_sanity_val_steps": None, "log_every_n_steps": None}
        _, other = fitted(tmp_path, **changes)
        assert difference(plain.state_dict(), other.state_dict()) == 0.0


def test_stock_shuffling_dataloaders_repeat_themselves(tmp_path) -> None:
    class Stock(ToyData):
        def train_dataloader(self) -> CombinedLoader:
            loaders = {
                k: DataLoader(Records(n, 5), batch_size=4, shuffle=True)
                for k, n in SIZES.items()
                if n % 4 != 1
            }
            return CombinedLoader(loaders, mode="sequential")

    _, one = fitted(tmp_path, data=Stock(), max_epochs=2)
    _, other = fitted(tmp_path, data=Stock(), max_epochs=2)
    assert difference(one.state_dict(), other.state_dict()) == 0.0


def test_estimated_steps_equal_the_steps_taken(tmp_path) -> None:
    trainer, _ = fitted(tmp_path)
    assert trainer.estimated_stepping_batches == trainer.global_step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_check_interval": 0.5}, "val_check_interval"),
        ({"val_check_interval": 5}, "val_check_interval"),
        ({"val_check_interval": 5, "check_val_every_n_epoch": None}, "val_check_interval"),
        ({"callbacks": [StochasticWeightAveraging(1e-2)]}, "StochasticWeightAveraging"),
    ],
)
def test_settings_without_a_meaning_in_rounds_are_refused(tmp_path, changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, **changes)


def test_the_learning_rate_finder_is_refused(tmp_path) -> None:
    trainer, module = make_trainer(tmp_path, logger=False, enable_checkpointing=True), TinyNet()
    module.lr = 0.1
    with pytest.raises(ConfigError, match="lr_find"):
        Tuner(trainer).lr_find(module, datamodule=ToyData(), num_training=5)


def test_loaders_that_are_not_one_per_client_are_refused(tmp_path) -> None:
    class Plain(ToyData):
        def train_dataloader(self):  # type: ignore[no-untyped-def]
            return make_loaders()

    with pytest.raises(ConfigError, match="mode='sequential'"):
        fitted(tmp_path, data=Plain())
    with pytest.raises(ConfigError, match="num_clients is 4"):
        fitted(tmp_path, fed=federation(num_clients=4))


def test_a_client_without_a_batch_or_a_size_is_refused(tmp_path) -> None:
    class Short(ToyData):
        def train_dataloader(self) -> CombinedLoader:
            loaders = {"a": DataLoader(Records(3, 0), batch_size=4, drop_last=True)}
            return CombinedLoader(loaders, mode="sequential")

    with pytest.raises(DataError, match="Client 'a' has no training batch"):
        fitted(tmp_path, data=Short())
    sizeless = CombinedLoader({"a": [1, 2]}, mode="sequential")
    sizeless.limits = [2]
    with pytest.raises(DataError, match="number of records of client 'a'"):
        Roster.from_loader(sizeless)


def test_a_loader_may_state_its_number_of_records(tmp_path) -> None:
    class Sized(list):
        num_records = 17

    combined = CombinedLoader({2: Sized([1, 2]), 1: Sized([3])}, mode="sequential")
    combined.limits = [2, 1]
    roster = Roster.from_loader(combined)
    assert roster.num_records == {2: 17, 1: 17}
    assert roster.clients == canonical_order([2, 1]) == [1, 2]
    assert roster.cost(2) == 2


def test_a_metric_some_clients_lack_is_averaged_over_the_others() -> None:
    from fedsynth.federated.client import ClientUpdate

    updates = [
        ClientUpdate(client=0, num_records=10, state={}, metrics={"auroc": 0.5, "train_loss": 1.0}, steps=1),
        ClientUpdate(client=1, num_records=30, state={}, metrics={"train_loss": 2.0}, steps=1),
    ]
    means = mean_metrics(updates)
    assert means == {"auroc": 0.5, "train/loss": 1.75, "client/0/train_loss": 1.0, "client/1/train_loss": 2.0}
