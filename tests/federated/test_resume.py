"""Whatever stopped a run, resuming it gives the uninterrupted run: weights, steps, round, metrics."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from toy_federation import StopAt, TinyNet, ToyData, difference, federation, fitted, make_trainer

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.fedavg import FedAvg

SCRIPT = Path(__file__).with_name("toy_federation.py")
SCHEDULERS = [None, "epoch", "step", "plateau"]


class Summary:
    def __init__(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
        self.state = {k: v.clone() for k, v in module.state_dict().items()}
        self.counts = (trainer.global_step, trainer.current_epoch)
        self.metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
        self.rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
        self.axis = trainer.fit_loop.epoch_loop._batches_that_stepped

    def assert_equals(self, other: "Summary") -> None:
        assert difference(self.state, other.state) == 0.0
        assert self.counts == other.counts
        assert self.metrics == other.metrics
        assert self.rates == other.rates
        assert self.axis == other.axis


def uninterrupted(root: Path, scheduler: str | None = None, **changes: object) -> Summary:
    return Summary(*fitted(root, module=TinyNet(scheduler), **changes))


def saver(root: Path, **changes: object) -> ModelCheckpoint:
    return ModelCheckpoint(dirpath=root / "ckpt", filename="{epoch}-{step}", save_top_k=-1, **changes)


def resumed(root: Path, path: Path, scheduler: str | None = None, **changes: object) -> Summary:
    return Summary(*fitted(root, module=TinyNet(scheduler), ckpt_path=str(path), **changes))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("at_epoch_end", [False, True])
def test_resuming_from_any_round_end_equals_the_uninterrupted_run(tmp_path, scheduler, at_epoch_end) -> None:
    callback = saver(tmp_path, save_on_train_epoch_end=at_epoch_end)
    whole = uninterrupted(tmp_path, scheduler, callbacks=[callback], enable_checkpointing=True)
    files = sorted((tmp_path / "ckpt").glob("*.ckpt"))
    assert len(files) == 3
    for path in files[:2]:
        resumed(tmp_path, path, scheduler).assert_equals(whole)


def test_resuming_in_the_middle_of_any_client_equals_the_uninterrupted_run(tmp_path) -> None:
    callback = saver(tmp_path, every_n_train_steps=7)
    whole = uninterrupted(tmp_path, "step", callbacks=[callback], enable_checkpointing=True)
    files = sorted((tmp_path / "ckpt").glob("*.ckpt"))
    assert len(files) >= 12
    assert {len(torch.load(p)["loops"]["fit_loop"]["state_dict"]["updates"]) for p in files} >= {0, 1, 2, 3}
    for path in files:
        resumed(tmp_path, path, "step").assert_equals(whole)


def test_saving_in_the_middle_of_a_client_leaves_the_run_as_it_was(tmp_path) -> None:
    changes = {"callbacks": [saver(tmp_path, every_n_train_steps=1)], "enable_checkpointing": True}
    uninterrupted(tmp_path, "step", **changes).assert_equals(uninterrupted(tmp_path, "step"))


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_inside_a_client_holds_the_global_model(tmp_path, weights_only) -> None:
    class Compare(Callback):
        compared = 0

        def on_train_epoch_start(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
            self.start = {k: v.clone() for k, v in module.state_dict().items()}

        def on_train_batch_end(self, trainer, module, *args: object) -> None:  # type: ignore[no-untyped-def]
            trainer.save_checkpoint(tmp_path / "inside.ckpt", weights_only=weights_only)
            assert difference(module.state_dict(), self.start) > 0
            assert difference(torch.load(tmp_path / "inside.ckpt")["state_dict"], self.start) == 0
            self.compared += 1

    compare = Compare()
    fitted(tmp_path, callbacks=[compare], max_epochs=1)
    assert compare.compared == 32


STOPS = {
    "first batch of the run": StopAt("train_batch", 0, "a"),
    "first batch of a client": StopAt("train_batch", 1, "c"),
    "middle of a client": StopAt("train_batch", 1, "b", batch=2),
    "last batch of a client": StopAt("train_batch", 1, "d", batch=3),
    "last batch of a round": StopAt("train_batch", 1, "e", batch=2),
    "before aggregation": StopAt("before_aggregate", 1),
    "after aggregation": StopAt("after_aggregate", 1),
    "middle of validation": StopAt("validation_batch", 1, batch=1),
    "last validation batch": StopAt("validation_batch", 2, batch=2),
}


@pytest.mark.parametrize(
    ("where", "scheduler"),
    [
        *((where, "epoch") for where in STOPS),
        *((where, scheduler) for where in list(STOPS)[2:7:2] for scheduler in ("step", "plateau")),
    ],
)
def test_resuming_after_an_exception_equals_the_uninterrupted_run(tmp_path, where, scheduler) -> None:
    whole = uninterrupted(tmp_path, scheduler)
    callbacks = [STOPS[where], saver(tmp_path, save_on_exception=True, every_n_epochs=100)]
    with pytest.raises(RuntimeError, match="stopped on purpose"):
        uninterrupted(tmp_path, scheduler, callbacks=callbacks, enable_checkpointing=True)
    (path,) = (tmp_path / "ckpt").glob("*.ckpt")
    resumed(tmp_path, path, scheduler).assert_equals(whole)


@pytest.mark.parametrize("weights_only", [None, True, False])
def test_checkpoints_load_without_unpickling_code(tmp_path, weights_only) -> None:
    callback = saver(tmp_path, every_n_train_steps=13)
    whole = uninterrupted(tmp_path, callbacks=[callback], enable_checkpointing=True)
    path = sorted((tmp_path / "ckpt").glob("*.ckpt"))[1]
    assert torch.load(path, weights_only=True)["loops"]["fit_loop"]["state_dict"]["updates"]
    trainer, module = make_trainer(tmp_path), TinyNet()
    trainer.fit(module, datamodule=ToyData(), ckpt_path=str(path), weights_only=weights_only)
    Summary(trainer, module).assert_equals(whole)


class Terminate(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
        if trainer.global_step == 45:
            os.kill(os.getpid(), signal.SIGTERM)


def test_resuming_after_sigterm_equals_the_uninterrupted_run(tmp_path) -> None:
    whole = uninterrupted(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    callbacks = [Terminate(), saver(tmp_path, save_on_exception=True, every_n_epochs=100)]
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Lightning leaves a foreign handler alone
        with pytest.raises(BaseException) as caught:
            fitted(tmp_path, callbacks=callbacks, enable_checkpointing=True)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert type(caught.value).__name__ == "SIGTERMException"
    (path,) = (tmp_path / "ckpt").glob("*.ckpt")
    resumed(tmp_path, path).assert_equals(whole)


@pytest.mark.slow
def test_resuming_after_sigkill_in_mid_round_equals_the_uninterrupted_run(tmp_path) -> None:
    whole = uninterrupted(tmp_path)
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--out", str(tmp_path), "--every-n-steps", "5"]
    killed = subprocess.run([*command, "--kill-at", "1", "2"], timeout=120, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    path = tmp_path / "ckpt" / "last.ckpt"
    assert torch.load(path)["loops"]["fit_loop"]["state_dict"]["updates"]  # round 1 was under way
    resumed(tmp_path, path).assert_equals(whole)


def test_resuming_with_partial_participation_equals_the_uninterrupted_run(tmp_path) -> None:
    fed = federation(participation=0.5)
    callback = saver(tmp_path, every_n_train_steps=4)
    whole = uninterrupted(tmp_path, fed=fed, callbacks=[callback], enable_checkpointing=True)
    for path in sorted((tmp_path / "ckpt").glob("*.ckpt")):
        resumed(tmp_path, path, fed=fed).assert_equals(whole)


def test_resuming_a_run_bounded_by_steps_finishes_the_round_it_was_in(tmp_path) -> None:
    changes = {"max_steps": 45, "max_epochs": 5}
    callback = saver(tmp_path, every_n_train_steps=10)
    whole = uninterrupted(tmp_path, callbacks=[callback], enable_checkpointing=True, **changes)
    assert whole.counts[0] == 64  # two whole rounds of 32 steps
    for path in sorted((tmp_path / "ckpt").glob("*.ckpt")):
        resumed(tmp_path, path, **changes).assert_equals(whole)


def test_a_resumed_run_stops_early_in_the_same_round(tmp_path) -> None:
    # The loss never improves by so much, so three rounds; saved after the rule has counted the round.
    def callbacks(root: Path) -> list[Callback]:
        rule = EarlyStopping("val/loss", patience=2, min_delta=1e6, check_on_train_epoch_end=False)
        return [rule, saver(root, save_on_train_epoch_end=False)]

    changes = {"max_epochs": 6, "enable_checkpointing": True}
    whole = uninterrupted(tmp_path, callbacks=callbacks(tmp_path), **changes)
    assert whole.counts[1] == 3
    for path in sorted((tmp_path / "ckpt").glob("*.ckpt"))[:2]:
        resumed(tmp_path, path, callbacks=callbacks(tmp_path / "again"), **changes).assert_equals(whole)


class NoisyValidation(TinyNet):
    def validation_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
        self.log("val/noise", torch.rand(1).mean())


def test_random_draws_in_validation_are_the_same_after_resuming(tmp_path) -> None:
    callback = saver(tmp_path)
    changes = {"callbacks": [callback], "enable_checkpointing": True}
    whole = Summary(*fitted(tmp_path, module=NoisyValidation(), **changes))
    path = sorted((tmp_path / "ckpt").glob("*.ckpt"))[0]
    torch.manual_seed(123)
    Summary(*fitted(tmp_path, module=NoisyValidation(), ckpt_path=str(path))).assert_equals(whole)


class Momentum(FedAvg):
    """Server momentum: state that must survive a checkpoint."""

    def __init__(self) -> None:
        self.velocity: dict = {}

    def aggregate(self, global_state, updates):  # type: ignore[no-untyped-def]
        new = super().aggregate(global_state, updates)
        for name, value in new.items():
            if value.is_floating_point():
                step = value - global_state[name] + 0.5 * self.velocity.get(name, 0.0)
                self.velocity[name], new[name] = step, global_state[name] + step
        return new

    def state_dict(self) -> dict:
        return {"velocity": {name: value.clone() for name, value in self.velocity.items()}}

    def load_state_dict(self, state) -> None:  # type: ignore[no-untyped-def]
        self.velocity = dict(state["velocity"])


def test_server_state_survives_a_checkpoint(tmp_path) -> None:
    callback = saver(tmp_path, every_n_train_steps=9)
    fed = federation(strategy=Momentum())
    whole = uninterrupted(tmp_path, fed=fed, callbacks=[callback], enable_checkpointing=True)
    assert difference(whole.state, uninterrupted(tmp_path).state) > 1e-3
    for path in sorted((tmp_path / "ckpt").glob("*.ckpt"))[::3]:
        resumed(tmp_path, path, fed=federation(strategy=Momentum())).assert_equals(whole)


def test_another_seed_gives_another_run(tmp_path) -> None:
    one, other = uninterrupted(tmp_path), uninterrupted(tmp_path, fed=federation(seed=4))
    assert difference(one.state, other.state) > 1e-3


def test_resuming_a_round_with_another_federation_is_refused(tmp_path) -> None:
    callback = saver(tmp_path, every_n_train_steps=7)
    uninterrupted(tmp_path, callbacks=[callback], enable_checkpointing=True)
    path = tmp_path / "ckpt" / "epoch=0-step=28.ckpt"
    with pytest.raises(ConfigError, match=r"Resume with the same federation"):
        resumed(tmp_path, path, fed=federation(seed=4))


def test_a_stock_lightning_checkpoint_is_refused(tmp_path) -> None:
    trainer, _ = fitted(tmp_path, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    checkpoint = torch.load(tmp_path / "own.ckpt")
    checkpoint["loops"]["fit_loop"]["state_dict"] = {}
    torch.save(checkpoint, tmp_path / "stock.ckpt")
    with pytest.raises(ConfigError, match="not written by a FederatedTrainer"):
        resumed(tmp_path, tmp_path / "stock.ckpt")


def test_fitting_again_continues_after_the_last_round(tmp_path) -> None:
    trainer, module = fitted(tmp_path, max_epochs=2)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, datamodule=ToyData())
    Summary(trainer, module).assert_equals(uninterrupted(tmp_path))
