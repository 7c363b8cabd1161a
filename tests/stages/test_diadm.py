"""The image diffusion model: its steps, its averages, its snapshot, and going on after a kill or a full memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_latent_images import (
    FEATURE_DIM,
    TINY_NETWORK,
    codec_artifact,
    features_artifact,
    image_set,
    images_artifact,
    stage_settings,
)
from tiny_stages import equal, run_stage, stage_context, values

from fedsynth.errors import ArtifactError, ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.diadm.module import DiADM
from fedsynth.stages.diadm.run import _all_ranks_or_none
from fedsynth.stages.diadm.trained import conditions, open_denoiser
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.progress import EpochProgress


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Artifact]:
    images = images_artifact(tmp_path)
    return {
        "images": images,
        "codec": codec_artifact(tmp_path, images),
        "features": features_artifact(tmp_path),
    }


def tiny(*words: str, **changes: Any) -> Any:
    return dataclasses.replace(stage_settings("diadm", *TINY_NETWORK, *words), **changes)


def train(folder: Path, inputs: dict[str, Artifact], settings: Any = None, **trainer: Any) -> Artifact:
    settings = settings or tiny()
    used = {
        role: one for role, one in inputs.items() if role != "features" or settings.condition == "feature"
    }
    return run_stage("diadm", settings, used, stage_context(folder, trainer=trainer))


class Watch(DiADM):
    """Records of the last training: rates, rows of each step, weights after each step."""

    seen: list[Any]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_index)
        weights = {name: value.clone() for name, value in self.denoiser.state_dict().items()}
        type(self).seen.append(
            (self.trainer.global_step, self.trainer.optimizers[0].param_groups[0]["lr"], weights)
        )


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    Watch.seen = []
    monkeypatch.setattr("fedsynth.stages.diadm.run.DiADM", Watch)
    return Watch.seen


def test_training_learns_and_leaves_the_iterations_that_kimg_asks_for(
    tmp_path: Path, inputs: dict[str, Artifact], watch: list[Any]
) -> None:
    made = train(tmp_path / "diadm", inputs, tiny(kimg=4, steps_per_epoch=25))
    history = json.loads((made.path / "history.json").read_text())
    assert len(watch) == watch[-1][0] == made.manifest["notes"]["iterations"] == 63
    assert [row["epoch"] for row in history] == [0, 1, 2]  # the last has 13 steps, and is in the curve
    # 1 is where the training starts, the best linear denoiser of pixels taken one by one.
    assert values(made)[("diadm", "val/loss", 42)] == history[-1]["val/loss"] < 0.75
    assert history[-1]["train/loss"] < history[0]["train/loss"]


def test_the_learning_rate_is_that_of_the_images_seen(
    tmp_path: Path, inputs: dict[str, Artifact], watch: list[Any]
) -> None:
    settings = tiny(ramp_kimg=0.32, decay_kimg=0.64)
    train(tmp_path / "diadm", inputs, settings)
    rates = torch.tensor([rate for _, rate, _ in watch], dtype=torch.float64)
    # The rate that a step leaves behind is that of the next step: 64 images more.
    seen = 64.0 * torch.arange(1, len(rates) + 1, dtype=torch.float64)
    wanted = settings.learning_rate * (seen / 320).clamp(max=1) / (seen / 640).clamp(min=1).sqrt()
    torch.testing.assert_close(rates, wanted, rtol=1e-9, atol=0)


def test_stored_averages_are_power_means_of_the_weights_and_zero_names_the_raw_ones(
    tmp_path: Path, inputs: dict[str, Artifact], watch: list[Any]
) -> None:
    made = train(tmp_path / "diadm", inputs, tiny(ema_widths=[12**-0.5, 0.1], ema_width=0.1))
    name = "network.head.convolution.weight"
    name = (
        name if name in watch[0][2] else next(n for n in watch[0][2] if "head" in n and n.endswith("weight"))
    )
    # The widest average (gamma = 0) is the plain mean over all steps.
    mean = torch.stack([weights[name] for _, _, weights in watch]).mean(0)
    wide = open_denoiser(made, ema_width=12**-0.5).state_dict()[name]
    torch.testing.assert_close(wide, mean, rtol=1e-4, atol=1e-6)
    assert torch.equal(open_denoiser(made, ema_width=0.0).state_dict()[name], watch[-1][2][name])
    chosen = open_denoiser(made)
    assert equal(chosen.state_dict(), open_denoiser(made, ema_width=0.1).state_dict())
    assert not torch.equal(chosen.state_dict()[name], watch[-1][2][name])
    assert not chosen.training
    assert not any(one.requires_grad for one in chosen.parameters())
    with pytest.raises(ArtifactError, match=r"no average of width 0\.2.*0, 0\.1"):
        open_denoiser(made, ema_width=0.2)


def test_the_earlier_snapshot_is_the_training_stopped_at_its_fraction(
    tmp_path: Path, inputs: dict[str, Artifact], watch: list[Any]
) -> None:
    made = train(tmp_path / "diadm", inputs, tiny(earlier_fraction=0.25))
    step = made.manifest["notes"]["earlier_iteration"]
    assert step == round(0.25 * 16)
    (weights,) = [weights for at, _, weights in watch if at == step]
    earlier = open_denoiser(made, ema_width=0.0, earlier=True)
    assert equal(earlier.state_dict(), weights)
    assert not equal(open_denoiser(made, earlier=True).state_dict(), open_denoiser(made).state_dict())


class Killed(Exception):
    pass


def test_a_killed_training_goes_on_bit_for_bit(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last epoch is short, and the snapshot at step 3 lies before the kill.
    settings = tiny("image_network.style=magnitude_preserving", uncertainty=True, earlier_fraction=0.2,
                    condition_dropout=0.3, dropout=0.1)  # fmt: skip
    whole = train(tmp_path / "whole", inputs, settings)
    step = DiADM.on_train_batch_end

    def killed(self: DiADM, *arguments: Any) -> None:
        step(self, *arguments)
        if self.trainer.global_step == 14:
            raise Killed

    monkeypatch.setattr(DiADM, "on_train_batch_end", killed)
    with pytest.raises(Killed):
        train(tmp_path / "resumed", inputs, settings)
    monkeypatch.setattr(DiADM, "on_train_batch_end", step)
    resumed = train(tmp_path / "resumed", inputs, settings)
    for name in ("denoiser.safetensors", "earlier.safetensors"):
        assert equal(whole.load(name), resumed.load(name))
    assert (whole.path / "history.json").read_text() == (resumed.path / "history.json").read_text()


def test_a_full_memory_halves_the_batch_and_keeps_the_training(
    tmp_path: Path,
    inputs: dict[str, Artifact],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A network that raises above a batch size trains on the same rows, in smaller batches."""
    rows: list[list[float]] = []
    step, limit = DiADM.training_step, 20

    def limited(self: DiADM, batch: dict[str, torch.Tensor], batch_index: int) -> Any:
        if len(batch["latent"]) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        rows.append(batch["latent"][:, 0, 0, 0].tolist())
        return step(self, batch, batch_index)

    settings = tiny(condition="none", num_validation_images=0)
    monkeypatch.setattr(DiADM, "training_step", limited)
    made = train(tmp_path / "limited", inputs, settings)
    small_rows = [value for batch in rows for value in batch]
    assert {len(batch) for batch in rows} == {16}
    rows.clear()
    limit = 1000
    free = train(tmp_path / "free", inputs, settings)
    assert small_rows == [value for batch in rows for value in batch]
    notes = made.manifest["notes"]
    assert (notes["micro_batch_size"], notes["accumulated_batches"]) == (16, 4)
    assert free.manifest["notes"]["micro_batch_size"] == 64
    assert notes["iterations"] == free.manifest["notes"]["iterations"] == len(rows) == len(small_rows) / 64
    assert any("batch_size=64" in line and "trying 32" in line for line in caplog.messages)


def test_a_batch_of_one_that_does_not_fit_names_the_key(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: DiADM, batch: Any, batch_index: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    # A terminal holds one bar at a time: that of the failed try must be down before the next.
    bars: list[str] = []
    start, stop = EpochProgress.on_train_start, EpochProgress.teardown
    monkeypatch.setattr(EpochProgress, "on_train_start", lambda *a: (bars.append("up"), start(*a)))
    monkeypatch.setattr(EpochProgress, "teardown", lambda *a: (bars.append("down"), stop(*a)))
    monkeypatch.setattr(DiADM, "training_step", full)
    with pytest.raises(ConfigError, match="halved down to 1") as caught:
        train(tmp_path / "diadm", inputs, tiny(batch_size=2))
    assert caught.value.key == "stages.diadm.batch_size"
    assert bars == ["up", "down", "up", "down"]


def test_one_of_several_processes_cannot_take_smaller_batches_alone(tmp_path: Path) -> None:
    def fails(error: Exception) -> Any:
        def work(size: int) -> None:
            raise error

        return work

    context = stage_context(tmp_path / "diadm", world_size=4, trainer={"accumulate_grad_batches": 2})
    full = fails(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(ConfigError, match=r"256 images a process.*accumulate_grad_batches=4"):
        _all_ranks_or_none(full, 256, context)
    with pytest.raises(RuntimeError, match="shapes differ"):
        _all_ranks_or_none(fails(RuntimeError("shapes differ")), 256, context)


@pytest.mark.parametrize("accumulated", [2, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch, accumulated: int
) -> None:
    """σ, noise and dropped conditions belong to the rows of a step, so its gradient is one however it is cut."""
    gradients: list[torch.Tensor] = []

    def record(self: DiADM, optimizer: Any) -> None:
        gradients.append(
            torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None]).clone()
        )

    monkeypatch.setattr(DiADM, "on_before_optimizer_step", record)
    # The learning rate is 0 in the first step; with a ramp that never ends, all see nearly the same weights.
    settings = tiny(condition_dropout=0.3, uncertainty=True, num_validation_images=0, ramp_kimg=1e6)
    train(tmp_path / "one", inputs, settings)
    whole = gradients.copy()
    gradients.clear()
    train(tmp_path / "parts", inputs, settings, accumulate_grad_batches=accumulated)
    assert len(gradients) == len(whole) == 16
    for one, other in zip(gradients, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(whole[0], whole[1])


@pytest.mark.parametrize(("condition", "dim"), [("none", 0), ("class", 2), ("feature", FEATURE_DIM)])
def test_conditions_share_one_code_path(
    tmp_path: Path, inputs: dict[str, Artifact], condition: str, dim: int
) -> None:
    made = train(tmp_path / "diadm", inputs, tiny(condition=condition))
    notes = made.manifest["notes"]
    assert (notes["condition"], notes["condition_dim"]) == (condition, dim)
    denoiser, x = open_denoiser(made), torch.randn(3, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    vectors = conditions(notes, image_set(3), torch.rand(3, FEATURE_DIM)) if dim else None
    assert denoiser(x, torch.tensor(1.0), vectors).shape == x.shape


def test_conditions_have_length_one() -> None:
    images = image_set(4)
    feature = conditions({"condition": "feature"}, images, 7 * torch.rand(4, 5))
    assert feature is not None
    torch.testing.assert_close(feature.norm(dim=1), torch.ones(4))
    one_hot = conditions({"condition": "class"}, images, None)
    assert one_hot is not None
    assert one_hot.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    several = ImageSet(
        images.image,
        torch.tensor([[1, 1], [0, 1], [0, 0], [1, 0]], dtype=torch.uint8),
        ("a", "b"),
        "multilabel",
    )
    vectors = conditions({"condition": "class"}, several, None)
    assert vectors is not None
    torch.testing.assert_close(vectors.norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0]))
    assert conditions({"condition": "none"}, images, None) is None


@pytest.mark.parametrize(
    "features", [None, torch.rand(3, 5), torch.zeros(4, 5), torch.full((4, 5), torch.inf)]
)
def test_features_that_give_no_direction_are_refused(features: torch.Tensor | None) -> None:
    with pytest.raises(DataError):
        conditions({"condition": "feature"}, image_set(4), features)


def test_training_goes_on_from_the_weights_of_another_run(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    first = train(tmp_path / "first", inputs, tiny(condition="class"))
    path = str(first.path / "denoiser.safetensors")
    fresh = train(tmp_path / "fresh", inputs, tiny(kimg=1))
    begun = train(
        tmp_path / "begun", inputs, tiny(kimg=1, init_weights=path)
    )  # another condition: its layer is new
    assert values(begun)[("diadm", "val/loss", 42)] < values(fresh)[("diadm", "val/loss", 42)]
    with pytest.raises(ConfigError, match=r"another architecture.*image_network"):
        train(tmp_path / "wider", inputs, tiny(channels=16, init_weights=path))
    (tmp_path / "no.safetensors").write_text("nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        train(tmp_path / "broken", inputs, tiny(init_weights=str(tmp_path / "no.safetensors")))


def test_latents_of_other_images_are_refused(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    other = images_artifact(tmp_path / "other", 30)
    with pytest.raises(DataError, match=r"40 train latents but .* 30 train images"):
        train(tmp_path / "diadm", {**inputs, "images": other}, tiny(condition="class"))


def test_latents_that_cannot_be_halved_are_refused_before_training(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    with pytest.raises(ConfigError, match=r"halve latents 3 times.*4 x 4") as caught:
        train(tmp_path / "diadm", inputs, tiny(multipliers=[1, 1, 1, 1]))
    assert caught.value.key == "image_network.multipliers"
    with pytest.raises(ConfigError, match="multiple of processes"):
        train(tmp_path / "diadm", inputs, tiny(), accumulate_grad_batches=3)


def test_a_quick_look_still_leaves_a_whole_artifact(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    made = train(tmp_path / "diadm", inputs, tiny(), limit_train_batches=2)
    assert made.manifest["notes"]["earlier_iteration"] == 1  # a tenth of 3 epochs of 2 steps
    assert not equal(open_denoiser(made, earlier=True).state_dict(), open_denoiser(made).state_dict())
