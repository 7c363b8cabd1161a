"""What trained stages share: going on after a kill changes no bit, best weights, whose checkpoint it is."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from tiny_stages import equal, no_loggers, run_stage, settings, stage_context, stock_trainer
from torch import nn
from torch.utils.data import DataLoader

from fedsynth.data.sources import DataSource
from fedsynth.errors import ArtifactError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages import training
from fedsynth.stages.training import BestWeights, EpochMean, EpochStream, History, batch_share, fit, placement


class Stop(Exception):
    pass


class Watch(Callback):
    """Counts the epochs begun; stops before one of them, as a kill would."""

    def __init__(self, stop_at: int | None) -> None:
        self.stop_at = stop_at
        self.begun: list[int] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == self.stop_at:
            raise Stop
        self.begun.append(trainer.current_epoch)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], Watch]:
    """``watched(epoch)``: every training from now on stops there; None lets it run."""

    def watch(stop_at: int | None) -> Watch:
        made = Watch(stop_at)
        monkeypatch.setattr(training, "epoch_progress", lambda context, trainer_class: [made])
        return made

    return watch


@pytest.fixture
def stages(
    clients: Artifact, samples: Artifact, latents: Artifact, chest: DataSource
) -> dict[str, tuple[str, dict[str, Artifact], dict[str, Any]]]:
    """Trained stages: name of their settings, inputs, and what else their context needs."""
    return {
        "pretrain_xray": ("pretrain_xray", {}, {"sources": {"chestmnist": chest}}),
        "fusion_encoder": ("fusion_encoder", {"clients": clients}, {}),
        "latent_ddpm": ("latent_ddpm", {"mixture": samples}, {}),
        "tstr_mlp": ("tstr_diffusion", {"train": samples, "latents": latents}, {}),
    }


@pytest.mark.parametrize(
    ("kind", "epochs", "stop_at", "going_on_from"),
    [
        ("pretrain_xray", 4, 2, 2),
        ("fusion_encoder", 4, 2, 2),
        ("latent_ddpm", 14, 12, 10),  # a checkpoint every tenth epoch
        ("tstr_mlp", 24, 22, 20),  # every twentieth
    ],
)
def test_a_killed_stage_goes_on_and_ends_with_the_same_bits(
    kind: str,
    epochs: int,
    stop_at: int,
    going_on_from: int,
    stages: dict[str, Any],
    tmp_path: Path,
    watched: Callable[[int | None], Watch],
) -> None:
    name, inputs, context = stages[kind]
    watched(None)
    whole = run_stage(kind, settings(name), inputs, stage_context(tmp_path / "whole", epochs, **context))
    watched(stop_at)
    with pytest.raises(Stop):
        run_stage(kind, settings(name), inputs, stage_context(tmp_path / "killed", epochs, **context))
    torch.rand(5)
    watch = watched(None)
    resumed = run_stage(kind, settings(name), inputs, stage_context(tmp_path / "killed", epochs, **context))

    assert watch.begun[0] == going_on_from
    files = sorted(whole.manifest["files"])
    assert sorted(resumed.manifest["files"]) == files
    for file in files:
        if file.endswith(".safetensors"):
            assert equal(resumed.load(file), whole.load(file)), file
        else:
            assert (resumed.path / file).read_text() == (whole.path / file).read_text()
    assert resumed.manifest["metrics"] == whole.manifest["metrics"]


def test_a_finished_training_of_several_is_not_repeated(
    stages: dict[str, Any], tmp_path: Path, watched: Callable[[int | None], Watch]
) -> None:
    name, inputs, _ = stages["tstr_mlp"]
    for _ in range(2):
        watch = watched(None)
        run_stage("tstr_mlp", settings(name), inputs, stage_context(tmp_path / "tstr", 20))
    assert watch.begun == []


def test_the_last_epoch_of_a_short_schedule_needs_no_checkpoint(
    stages: dict[str, Any], tmp_path: Path, watched: Callable[[int | None], Watch]
) -> None:
    name, inputs, _ = stages["latent_ddpm"]
    watch = watched(None)
    run_stage("latent_ddpm", settings(name), inputs, stage_context(tmp_path / "ddpm", 3))
    assert watch.begun == [0, 1, 2]


# -- one small module ----------------------------------------------------------------------------------------


class Line(L.LightningModule):
    """Fits y = 3x; reports the validation losses it is told."""

    def __init__(self, losses: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.network = nn.Linear(1, 1)
        nn.init.zeros_(self.network.weight)
        nn.init.zeros_(self.network.bias)
        self.losses = losses
        self.mean_loss = EpochMean()
        self.by_hand: list[float] = []

    def training_step(self, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
        loss = (self.network(batch) - 3 * batch).square().mean()
        self.mean_loss.add(loss, len(batch))
        self.by_hand.append(float(loss.detach()) * len(batch))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.mean_loss.log(self, "train/loss")

    def validation_step(self, batch: torch.Tensor, batch_index: int) -> None:
        if self.losses:
            self.log("val/loss", torch.tensor(self.losses[self.current_epoch]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Numbers(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(torch.linspace(-1, 1, 10).unsqueeze(1), batch_size=4)

    def val_dataloader(self) -> Any:
        return DataLoader(torch.ones(2, 1))


def fitted(module: Line, folder: Path, epochs: int, **changes: Any) -> History:
    context = stage_context(folder, epochs, **changes.pop("context", {}))
    return fit(module, Numbers(), context, network=module.network, **changes)


def test_best_weights_are_those_of_the_lowest_loss_also_after_resuming(
    tmp_path: Path, watched: Callable[[int | None], Watch]
) -> None:
    losses = (0.9, 0.2, float("nan"), 0.5)
    watched(None)
    snapshot = Line(losses)
    fitted(snapshot, tmp_path / "two epochs", 2)

    module = Line(losses)
    watched(3)
    with pytest.raises(Stop):
        fitted(module, tmp_path / "run", 4, callbacks=[BestWeights(module.network, "val/loss")])
    module = Line(losses)
    best = BestWeights(module.network, "val/loss")
    watch = watched(None)
    fitted(module, tmp_path / "run", 4, callbacks=[best])
    assert watch.begun == [3]
    assert (best.value, best.epoch) == (pytest.approx(0.2), 1)
    assert not equal(module.network.state_dict(), snapshot.network.state_dict())
    best.restore()
    assert equal(module.network.state_dict(), snapshot.network.state_dict())


def test_without_any_validation_the_last_weights_stay(tmp_path: Path) -> None:
    module = Line((0.9, 0.2))
    best = BestWeights(module.network, "val/loss")
    fitted(module, tmp_path, 2, callbacks=[best], context={"trainer": {"limit_val_batches": 0}})
    before = {name: tensor.clone() for name, tensor in module.network.state_dict().items()}
    best.restore()
    assert best.epoch == -1
    assert equal(module.network.state_dict(), before)


def test_history_holds_each_epoch_s_own_mean_loss_and_has_no_gap_after_resuming(
    tmp_path: Path, watched: Callable[[int | None], Watch]
) -> None:
    watched(None)
    module = Line((0.9, 0.2, 0.5))
    whole = fitted(module, tmp_path / "whole", 3)
    # Batches of 4, 4 and 2: the mean over records, not over batches.
    wanted = [sum(module.by_hand[start : start + 3]) / 10 for start in (0, 3, 6)]
    assert [row["train/loss"] for row in whole.rows] == pytest.approx(wanted)
    assert [row["epoch"] for row in whole.rows] == [0, 1, 2]
    assert [row["val/loss"] for row in whole.rows] == pytest.approx([0.9, 0.2, 0.5])

    watched(2)
    with pytest.raises(Stop):
        fitted(Line((0.9, 0.2, 0.5)), tmp_path / "run", 3)
    watched(None)
    assert fitted(Line((0.9, 0.2, 0.5)), tmp_path / "run", 3).rows == whole.rows
    whole.write(tmp_path)
    assert json.loads((tmp_path / "history.json").read_text()) == whole.rows


def test_a_checkpoint_of_another_key_is_refused(tmp_path: Path) -> None:
    fitted(Line(), tmp_path, 1, context={"key": "a" * 64})
    with pytest.raises(ArtifactError, match=r"another configuration .*key aaaaaaaaaaaa, wanted bbbbbbbbbbbb"):
        fitted(Line(), tmp_path, 1, context={"key": "b" * 64})


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    trainer = stock_trainer(tmp_path, enable_checkpointing=True)
    trainer.fit(Line(), Numbers())
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    trainer.save_checkpoint(tmp_path / "checkpoints" / "last.ckpt")
    with pytest.raises(ArtifactError, match=r"another configuration .*key None"):
        fitted(Line(), tmp_path, 1)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "wrong type"])
def test_an_unreadable_checkpoint_is_named_and_training_starts_again(
    damage: str,
    tmp_path: Path,
    watched: Callable[[int | None], Watch],
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched(None)
    whole = fitted(Line(), tmp_path / "run", 2)
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    if damage == "wrong type":
        torch.save(torch.ones(3), path)
    else:
        content = path.read_bytes()
        path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"hello"}[damage])
    watch = watched(None)
    with caplog.at_level(logging.WARNING, logger="fedsynth"):
        again = fitted(Line(), tmp_path / "run", 2)
    assert watch.begun == [0, 1]
    assert again.rows == whole.rows
    assert f"{path} cannot be read" in caplog.text
    assert "stages.run starts again" in caplog.text


def test_a_look_at_one_batch_leaves_no_checkpoint(tmp_path: Path) -> None:
    history = fitted(Line((0.9,)), tmp_path, 3, context={"trainer": {"fast_dev_run": True}})
    assert [row["epoch"] for row in history.rows] == [0]
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("kind", ["latent_ddpm", "fusion_encoder"])
def test_overfitting_repeats_one_and_the_same_batch(
    kind: str, stages: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    class See(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            seen.append(batch["label"] + next(iter(batch.values())).flatten(1).sum(1))

    monkeypatch.setattr(training, "epoch_progress", lambda context, trainer_class: [See()])
    name, inputs, _ = stages[kind]
    context = stage_context(tmp_path / kind, 3, trainer={"overfit_batches": 1})
    run_stage(kind, settings(name), inputs, context)
    num_batches = {"latent_ddpm": 1, "fusion_encoder": 2 * 2}[kind]  # clients times local epochs
    assert len(seen) == 3 * num_batches
    for earlier, later in zip(seen, seen[num_batches:], strict=False):
        assert torch.equal(earlier, later)


def test_the_network_is_compiled_for_training_only(tmp_path: Path) -> None:
    calls: list[str] = []

    class Network(nn.Linear):
        def compile(self, **options: Any) -> None:
            self._compiled_call_impl = lambda batch: calls.append("compiled") or self.forward(batch)

    module = Line()
    module.network = Network(1, 1)
    fitted(module, tmp_path, 1, context={"trainer": {"compile": True}})
    assert calls == ["compiled"] * 3
    module.network(torch.ones(2, 1))
    assert len(calls) == 3


def test_the_stage_s_loggers_are_opened_once_for_each_training(tmp_path: Path) -> None:
    parts: list[str] = []

    def loggers(part: str) -> Any:
        parts.append(part)
        return no_loggers(part)

    fitted(Line(), tmp_path, 1, name="classifier-3.ckpt", context={"loggers": loggers})
    assert parts == ["classifier-3"]
    assert (tmp_path / "checkpoints" / "classifier-3.ckpt").is_file()


# -- placement and random streams ----------------------------------------------------------------------------


def test_one_process_is_placed_on_one_device_whatever_the_config_says(tmp_path: Path) -> None:
    context = stage_context(tmp_path)
    assert placement(context, {"devices": 4, "strategy": "ddp", "num_nodes": 2}) == {
        "devices": 1,
        "strategy": "auto",
        "num_nodes": 1,
    }


@pytest.mark.parametrize(("local", "nodes"), [("8", 1), ("4", 2), (None, 1)])
def test_the_processes_of_torchrun_are_spread_over_nodes(
    tmp_path: Path, local: str | None, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    placed = placement(stage_context(tmp_path, world_size=8), {"strategy": "ddp"})
    assert (placed["devices"], placed["num_nodes"]) == (8 // nodes, nodes)
    assert isinstance(placed["strategy"], DDPStrategy)
    # A collective in the forward pass would wait for ranks with fewer validation batches.
    (option,) = [name for name in placed["strategy"]._ddp_kwargs if name.endswith("buffers")]
    assert placed["strategy"]._ddp_kwargs[option] is False


def test_another_strategy_is_handed_on(tmp_path: Path) -> None:
    assert placement(stage_context(tmp_path, world_size=2), {"strategy": "fsdp"})["strategy"] == "fsdp"


@pytest.mark.parametrize(
    ("batch_size", "world_size", "share"), [(256, 1, 256), (256, 4, 64), (10, 4, 3), (2, 4, 2), (1, 4, 1)]
)
def test_processes_share_a_batch(batch_size: int, world_size: int, share: int, tmp_path: Path) -> None:
    assert batch_share(batch_size, stage_context(tmp_path, world_size=world_size)) == share


def test_dropout_draws_depend_on_seed_epoch_and_rank_only() -> None:
    class Place:
        def __init__(self, epoch: int, rank: int) -> None:
            self.current_epoch, self.global_rank = epoch, rank

    def draw(seed: int, epoch: int, rank: int) -> float:
        torch.rand(3)
        EpochStream(seed).on_train_epoch_start(Place(epoch, rank), None)  # type: ignore[arg-type]
        return float(torch.rand(()))

    assert draw(1, 0, 0) == draw(1, 0, 0)
    assert len({draw(1, 0, 0), draw(2, 0, 0), draw(1, 1, 0), draw(1, 0, 1)}) == 4
