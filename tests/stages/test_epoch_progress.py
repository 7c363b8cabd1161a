"""Progress of a stock training: a bar on a terminal, elsewhere lines only when it takes a while."""

from __future__ import annotations

import io
from pathlib import Path

import lightning as L
import pytest
import rich.progress
import torch
from rich.console import Console
from tiny_stages import DIM, stage_context, stock_trainer, tiny_latents

from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.stages import progress
from fedsynth.stages.progress import EpochProgress, epoch_progress
from fedsynth.stages.tstr_mlp.datamodule import ArmLatentsData
from fedsynth.stages.tstr_mlp.module import TSTRClassifier


def shown(folder: Path, monkeypatch: pytest.MonkeyPatch, *, terminal: bool, seconds: float) -> str:
    stream = io.StringIO()
    made = Console(file=stream, force_terminal=terminal, width=200)
    monkeypatch.setattr(progress, "console", lambda: made)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", seconds)
    tensors = tiny_latents()
    data = ArmLatentsData(tensors["train.latent"], tensors["train.label"], batch_size=16, seed=0)
    torch.manual_seed(0)
    module = TSTRClassifier(dim=DIM, hidden_dims=[4], dropout=0.0, learning_rate=1e-3)
    stock_trainer(folder, max_epochs=3, callbacks=[EpochProgress("tstr_real")]).fit(module, data)
    return stream.getvalue()


def test_without_a_terminal_a_short_training_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(tmp_path, monkeypatch, terminal=False, seconds=60) == ""


def test_without_a_terminal_a_long_training_tells_its_epoch_and_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(tmp_path, monkeypatch, terminal=False, seconds=0).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    losses = [float(line.split("  ")[1].removeprefix("train/loss ")) for line in lines]
    assert len(set(losses)) == 3
    assert all(0 < loss < 2 for loss in losses)


def test_a_terminal_gets_a_bar_with_the_stage_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(tmp_path, monkeypatch, terminal=True, seconds=0)
    assert "tstr_real" in text
    assert "3/3 epochs" in text


def test_a_training_that_fails_takes_its_bar_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal holds one bar at a time: rich refuses a second one while the first is up."""
    made = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(progress, "console", lambda: made)
    tensors = tiny_latents()
    data = ArmLatentsData(tensors["train.latent"], tensors["train.label"], batch_size=16, seed=0)
    module = TSTRClassifier(dim=DIM, hidden_dims=[4], dropout=0.0, learning_rate=1e-3)
    bar = EpochProgress("tstr_real")

    def fails(*arguments: object) -> None:
        assert bar._progress is not None
        raise RuntimeError("diverged")

    monkeypatch.setattr(module, "training_step", fails)
    with pytest.raises(RuntimeError, match="diverged"):
        stock_trainer(tmp_path, max_epochs=3, callbacks=[bar]).fit(module, data)
    assert bar._progress is None
    with rich.progress.Progress(console=made):
        pass


def test_the_federated_trainer_brings_its_own_bar(tmp_path: Path) -> None:
    context = stage_context(tmp_path)
    assert [type(callback) for callback in epoch_progress(context, L.Trainer)] == [EpochProgress]
    assert epoch_progress(context, FederatedTrainer) == []
