"""The denoiser's training: a stock module, its noise, its average, its learning rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from tiny_stages import DIM, equal, run_stage, settings, stage_context, stock_trainer

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.latent_ddpm.datamodule import MixtureSamplesData
from fedsynth.stages.latent_ddpm.module import LatentDDPM, noise_schedule, snapshot_epochs


def module(**changes: Any) -> LatentDDPM:
    torch.manual_seed(0)
    return LatentDDPM(
        **{
            "dim": DIM, "width": 16, "num_blocks": 1, "time_embedding_dim": 8, "num_classes": 2,
            "beta_schedule": "linear", "num_timesteps": 20, "label_dropout": 0.1, "ema_decay": 0.9,
            "learning_rate": 1e-2, "noise_seed": 5, **changes,
        }
    )  # fmt: skip


def data(samples: Artifact, **changes: Any) -> MixtureSamplesData:
    stored = samples.load("samples.safetensors")
    return MixtureSamplesData(stored["latent"], stored["label"], **{"batch_size": 16, "seed": 0, **changes})


class Watch(Callback):
    """What each step used."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.draws: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        if batch_idx == 0:
            copy = torch.Generator()
            copy.set_state(pl_module.stream.get_state())
            self.draws.append(float(torch.rand((), generator=copy)))


def test_module_and_data_work_with_a_stock_trainer(tmp_path: Path, samples: Artifact) -> None:
    denoiser, watch = module(), Watch()
    trainer = stock_trainer(tmp_path, max_epochs=60, callbacks=[watch])
    trainer.fit(denoiser, datamodule=data(samples))
    assert trainer.global_step == 60 * 4
    # A denoiser that knows nothing of the data has the loss 1: that of predicting no noise at all.
    assert float(trainer.callback_metrics["train/loss"]) < 0.7


def test_the_learning_rate_falls_from_its_peak_to_zero_along_a_cosine(
    tmp_path: Path, samples: Artifact
) -> None:
    watch = Watch()
    stock_trainer(tmp_path, max_epochs=5, callbacks=[watch]).fit(module(), datamodule=data(samples))
    step = torch.arange(20, dtype=torch.float64)
    wanted = 1e-2 * (1 + torch.cos(torch.pi * step / 20)) / 2
    torch.testing.assert_close(torch.tensor(watch.rates, dtype=torch.float64), wanted, rtol=1e-6, atol=1e-12)


def test_noise_is_new_in_every_epoch_and_fixed_by_its_seed(tmp_path: Path, samples: Artifact) -> None:
    watches = [Watch(), Watch(), Watch()]
    for watch, seed in zip(watches, (5, 5, 6), strict=True):
        torch.rand(7)  # what others draw from the global stream plays no part
        trainer = stock_trainer(tmp_path, max_epochs=4, callbacks=[watch])
        trainer.fit(module(noise_seed=seed), datamodule=data(samples))
    assert len(set(watches[0].draws)) == 4
    assert watches[0].draws == watches[1].draws
    assert not set(watches[0].draws) & set(watches[2].draws)


def test_noise_differs_between_ranks() -> None:
    class Place:
        current_epoch = 3

        def __init__(self, rank: int) -> None:
            self.global_rank = rank

    draws = []
    for rank in (0, 1):
        denoiser = module()
        denoiser._trainer = Place(rank)
        denoiser.on_train_epoch_start()
        draws.append(float(torch.rand((), generator=denoiser.stream)))
    assert draws[0] != draws[1]


def test_the_average_follows_the_weights_by_the_decay_and_asks_for_no_gradient(
    tmp_path: Path, samples: Artifact
) -> None:
    seen: list[torch.Tensor] = []

    class Record(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            seen.append(next(pl_module.network.parameters()).detach().clone())

    denoiser = module(ema_decay=0.5)
    stock_trainer(tmp_path, max_epochs=1, callbacks=[Record()]).fit(denoiser, datamodule=data(samples))
    wanted = seen[0]
    for weight in seen[1:]:
        wanted = 0.5 * wanted + 0.5 * weight
    torch.testing.assert_close(next(denoiser.average.module.parameters()).data, wanted)
    # DDP waits for a gradient of every parameter that may have one.
    assert not any(parameter.requires_grad for parameter in denoiser.average.parameters())
    assert all(parameter.requires_grad for parameter in denoiser.network.parameters())


def test_training_latents_are_standardized_and_the_scaler_undoes_it(samples: Artifact) -> None:
    made, stored = data(samples), samples.load("samples.safetensors")
    latent = made.tensors["latent"]
    torch.testing.assert_close(latent.mean(0), torch.zeros(DIM), atol=1e-5, rtol=0)
    torch.testing.assert_close(latent.std(0, correction=0), torch.ones(DIM), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.scaler.restore(latent).float(), stored["latent"], atol=1e-4, rtol=1e-5)


def test_the_artifact_is_the_average_with_its_scaler(
    tmp_path: Path, samples: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[LatentDDPM] = []
    monkeypatch.setattr(
        "fedsynth.stages.latent_ddpm.run.LatentDDPM",
        lambda **arguments: trained.append(LatentDDPM(**arguments)) or trained[0],
    )
    context = stage_context(tmp_path / "ddpm", 3)
    made = run_stage("latent_ddpm", settings("latent_ddpm"), {"mixture": samples}, context)
    stored = made.load("denoiser.safetensors")
    scaler = data(samples).scaler
    assert torch.equal(stored.pop("scaler.mean"), scaler.mean)
    assert torch.equal(stored.pop("scaler.std"), scaler.std)
    assert equal(stored, dict(trained[0].average.module.state_dict()))
    assert not equal(stored, dict(trained[0].network.state_dict()))
    history = json.loads((made.path / "history.json").read_text())
    assert [row["epoch"] for row in history] == [0, 1, 2]
    (metric,) = made.manifest["metrics"]
    assert metric["value"] == history[-1]["train/loss"]


@pytest.mark.parametrize("num_timesteps", [20, 100, 1000])
def test_a_short_linear_schedule_ends_with_as_little_signal_as_the_long_one(num_timesteps: int) -> None:
    assert float(noise_schedule("linear", num_timesteps).alpha_bar[-1]) < 1e-4


def test_snapshots_are_the_averages_at_equal_parts_of_the_training() -> None:
    assert snapshot_epochs(60, 4) == (15, 30, 45)
    assert snapshot_epochs(10, 3) == (4, 7)
    assert snapshot_epochs(2, 5) == (1,)  # fewer epochs than snapshots: one each, the end is no snapshot
    assert snapshot_epochs(60, 1) == ()


def test_a_snapshot_equals_the_average_after_its_epoch_and_survives_a_checkpoint(
    tmp_path: Path, samples: Artifact
) -> None:
    class Record(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            averages.append({k: v.clone() for k, v in pl_module.average.module.state_dict().items()})

    averages: list[dict[str, torch.Tensor]] = []
    denoiser = module(num_snapshots=2)
    trainer = stock_trainer(tmp_path, max_epochs=4, callbacks=[Record()])
    trainer.fit(denoiser, datamodule=data(samples))
    assert list(denoiser.snapshots) == [2]
    assert equal(denoiser.snapshots[2], averages[1])
    assert not equal(denoiser.snapshots[2], averages[3])
    checkpoint: dict[str, Any] = {}
    denoiser.on_save_checkpoint(checkpoint)
    resumed = module(num_snapshots=2)
    resumed.on_load_checkpoint(checkpoint)
    assert equal(resumed.snapshots[2], averages[1])
