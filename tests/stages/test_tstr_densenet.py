"""DenseNets on image sets: order of batches, augmentation, choice of the checkpoint, what is stored and reported."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_densenet import CLASSES, SIZE, defaults, images, made, real_sets, stored, tiny_settings
from tiny_stages import equal, found, run_stage, stage_context, stock_trainer, values

from fedsynth.errors import ArtifactError, ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.tstr_densenet import augmentation
from fedsynth.stages.tstr_densenet.datamodule import ImageData, StepOrder
from fedsynth.stages.tstr_densenet.fitting import balanced_weights
from fedsynth.stages.tstr_densenet.module import DenseNetTraining, classification_loss, gray_levels
from fedsynth.stages.tstr_densenet.network import build_network, network_shape
from fedsynth.stages.tstr_densenet.trained import TrainedDenseNet, open_densenet

EPOCHS = 4


def classify(
    folder: Path,
    train: Artifact,
    real: Artifact,
    epochs: int = EPOCHS,
    *,
    trainer: Any = None,
    **changes: Any,
) -> Artifact:
    context = stage_context(folder, epochs, trainer=trainer or {})
    return run_stage(
        "tstr_densenet", tiny_settings("tstr_densenet", **changes), {"train": train, "images": real}, context
    )


@pytest.fixture
def real(tmp_path: Path) -> Artifact:
    return stored(tmp_path / "images", real_sets())


def order(num: int, steps: int, batch: int, rank: int = 0, world: int = 1) -> StepOrder:
    return StepOrder(num, num_steps=steps, batch_size=batch, seed=3, rank=rank, world_size=world)


@pytest.mark.parametrize(("num", "steps", "batch"), [(10, 7, 4), (3, 5, 8), (64, 3, 16), (7, 1, 7)])
def test_every_epoch_has_its_steps_and_records_are_seen_equally_often(
    num: int, steps: int, batch: int
) -> None:
    seen: Counter[int] = Counter()
    one = order(num, steps, batch)
    for epoch in range(4):
        one.set_epoch(epoch)
        batches = list(one)
        assert [len(b) for b in batches] == [batch] * steps
        assert len(one) == steps
        seen.update(torch.cat(batches).tolist())
        counts = [seen[row] for row in range(num)]
        assert max(counts) - min(counts) <= 1
    one.set_epoch(2)
    assert torch.equal(torch.cat(list(one)), torch.cat(list(one)))


def test_ranks_share_the_batches_of_one_process() -> None:
    whole = order(10, 6, 4)
    shares = [order(10, 6, 2, rank, 2) for rank in range(2)]
    for epoch in range(3):
        for one in (whole, *shares):
            one.set_epoch(epoch)
        for alone, *parts in zip(whole, *shares, strict=True):
            assert torch.equal(alone, torch.stack(parts, dim=1).flatten())


def test_losses_are_those_of_torch_and_of_the_formula() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.3, -0.7]])
    target = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    weight = torch.tensor([1.0, 3.0, 2.0])
    log_p = logits.log_softmax(1)
    wanted = -(3.0 * log_p[0, 1] + 1.0 * log_p[1, 0]) / 4.0  # weighted mean
    torch.testing.assert_close(classification_loss(logits, target, "multiclass", weight), wanted)
    p = logits.sigmoid()
    entries = -(weight * target * p.log() + (1 - target) * (1 - p).log())
    torch.testing.assert_close(classification_loss(logits, target, "multilabel", weight), entries.mean())


@pytest.mark.parametrize("weight", [[1.0, 1.0, 1.0], [0.5, 3.0, 2.0]])
def test_the_loss_of_soft_labels_is_cross_entropy_with_its_gradient(weight: list[float]) -> None:
    stream = torch.Generator().manual_seed(2)
    logits = torch.randn(5, 3, generator=stream, dtype=torch.float64).requires_grad_()
    soft = torch.randn(5, 3, generator=stream, dtype=torch.float64).softmax(1)
    weights = torch.tensor(weight, dtype=torch.float64)
    loss = classification_loss(logits, soft, "multiclass", weights)
    torch_loss = torch.nn.functional.cross_entropy(logits, soft, weight=weights, reduction="sum")
    torch.testing.assert_close(loss, torch_loss / (soft * weights).sum())
    # Smallest where the classifier says what the labels say: there the gradient is 0 without class weights.
    if weight == [1.0, 1.0, 1.0]:
        at_labels = soft.log().requires_grad_()
        classification_loss(at_labels, soft, "multiclass", weights).backward()
        torch.testing.assert_close(at_labels.grad, torch.zeros_like(soft))


def test_a_classifier_learns_from_soft_labels_where_there_are_any(tmp_path: Path, real: Artifact) -> None:
    sets = real_sets()
    train = sets["train"]
    # Soft labels that name another class than the source's: the classifier follows them.
    turned = dataclasses.replace(train, soft_label=train.targets().roll(1, dims=1) * 0.8 + 0.2 / 3)
    hard = classify(tmp_path / "hard", real, real, seeds=[1]).load("scores.safetensors")
    soft_set = stored(tmp_path / "soft", {"train": turned})
    soft = classify(tmp_path / "tstr", soft_set, real, seeds=[1]).load("scores.safetensors")
    true = sets["test"].targets()
    assert roc_auc_score(true, hard["test.probability"], average="macro") > 0.8
    assert roc_auc_score(true.roll(1, dims=1), soft["test.probability"], average="macro") > 0.8


def test_balanced_weights_give_every_class_the_same_part_of_the_loss() -> None:
    one = images(36).rows(torch.arange(20))
    weight, count = balanced_weights(one), one.targets().sum(0)
    torch.testing.assert_close(weight * count, torch.full((3,), 20 / 3))
    soft = dataclasses.replace(one, soft_label=one.targets() * 0.7 + 0.1)
    torch.testing.assert_close(
        balanced_weights(soft) * soft.training_targets().sum(0), torch.full((3,), 20 / 3)
    )
    # What softmax leaves to a class that no image has must not get a weight of hundreds.
    tails = dataclasses.replace(one, label=one.label.clamp(max=1), soft_label=one.targets() * 0.97 + 0.01)
    assert balanced_weights(tails)[2] == 1
    labels = images(30, task="multilabel")
    positive = labels.targets().sum(0)
    torch.testing.assert_close(balanced_weights(labels) * positive, 30 - positive)
    absent = images(36).rows(images(36).label != 2)
    assert balanced_weights(absent)[2] == 1


def test_shifts_move_whole_images_and_draw_each_offset() -> None:
    one = torch.arange(49.0).view(1, 1, 7, 7).repeat(200, 1, 1, 1)
    torch.manual_seed(0)
    moved = augmentation.shifted(one, 1)
    offsets = (moved[:, 0, 3, 3] - 24).long()  # seven a row, one a column
    assert set(offsets.tolist()) == {7 * row + column for row in (-1, 0, 1) for column in (-1, 0, 1)}
    for image, offset in zip(moved[:, 0], offsets.tolist(), strict=True):
        assert torch.equal(image[1:-1, 1:-1], one[0, 0, 1:-1, 1:-1] + offset)
    assert augmentation.shifted(one, 0) is one


def test_crops_have_the_size_asked_for_and_half_of_them_are_flipped() -> None:
    ramp = torch.linspace(0, 1, 20).expand(300, 1, 20, 20)  # rises to the right
    torch.manual_seed(1)
    views = augmentation.cropped_and_flipped(ramp, 8)
    assert views.shape == (300, 1, 8, 8)
    falls = (views[..., 0] > views[..., -1]).all(-1).flatten()
    rises = (views[..., 0] < views[..., -1]).all(-1).flatten()
    assert bool((falls ^ rises).all())
    assert abs(float(falls.float().mean()) - 0.5) < 0.12  # four standard errors of 300 coins
    width = (views[:, 0, 0, -1] - views[:, 0, 0, 0]).abs()
    assert width.min() < 0.5 < 0.8 < width.max()  # small and large crops


def test_ten_views_are_corners_center_and_mirror_images() -> None:
    image = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    views = augmentation.ten_views(image, 12, 8)
    assert len(views) == 10
    for view, (top, left) in zip(views, [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2)], strict=False):
        torch.testing.assert_close(view, image[..., top : top + 8, left : left + 8])
    flipped = augmentation.ten_views(image.flip(-1), 12, 8)
    for mirrored, view in zip(views[5:], flipped[:5], strict=True):
        torch.testing.assert_close(mirrored, view)


def test_ten_crop_probabilities_are_means_over_views() -> None:
    torch.manual_seed(0)
    settings = tiny_settings("tstr_densenet", input_size=16, resize_size=20)
    trained = TrainedDenseNet(build_network(network_shape(settings), 3).eval(), "multiclass", CLASSES)
    image = images(5).image
    made_of = trained.probability(image, 2, ten_crop=20)
    with torch.inference_mode():
        views = augmentation.ten_views(gray_levels(image), 20, 16)
        wanted = torch.stack([trained.network(view).softmax(1) for view in views]).mean(0)
    torch.testing.assert_close(made_of, wanted)
    torch.testing.assert_close(made_of.sum(1), torch.ones(5))
    with pytest.raises(DataError, match="ten_crop must be at least the size of a crop, 16, got 12"):
        trained.probability(image, ten_crop=12)


def test_module_and_data_work_with_a_stock_trainer(tmp_path: Path) -> None:
    sets = real_sets()
    settings = tiny_settings("tstr_densenet")
    torch.manual_seed(0)
    module = DenseNetTraining(
        build_network(network_shape(settings), 3), task="multiclass", class_weight=[1.0, 1.0, 1.0],
        augmentation="shift", max_shift=1, crop_size=None, optimizer="adamw", learning_rate=0.01,
        weight_decay=0.0, schedule="cosine", plateau_factor=0.1, plateau_patience=1,
    )  # fmt: skip
    data = ImageData(sets["train"], sets["val"], batch_size=12, steps_per_epoch=20, seed=0)
    trainer = stock_trainer(tmp_path, max_epochs=4)
    trainer.fit(module, data)
    assert trainer.global_step == 80
    assert float(trainer.callback_metrics["val/loss"]) < 0.5 < math.log(3)
    assert trainer.optimizers[0].param_groups[0]["lr"] < 1e-9  # the cosine has ended


def test_the_stage_learns_and_reports_what_its_scores_say(tmp_path: Path, real: Artifact) -> None:
    result = classify(tmp_path / "tstr", real, real)
    scores, reported, notes = result.load("scores.safetensors"), values(result), result.manifest["notes"]
    label, by_seed = scores["test.label"], scores["test.probability_by_seed"]
    assert by_seed.shape == (2, 30, 3)
    assert torch.equal(by_seed[0], scores["test.probability"])
    assert not torch.equal(by_seed[0], by_seed[1])
    assert torch.equal(scores["test.patient"], real.load("images.safetensors")["test.patient"])
    for seed, probability in zip((1, 2), by_seed.double(), strict=True):
        by_class = [roc_auc_score(label == k, probability[:, k]) for k in range(3)]
        for name, value in zip(CLASSES, by_class, strict=True):
            assert reported["real", f"test/auroc/{name}", seed] == pytest.approx(value)
        assert reported["real", "test/auroc", seed] == pytest.approx(sum(by_class) / 3)
        assert reported["real", "test/auroc", seed] > 0.9
        right = (probability.argmax(1) == label).double().mean()
        assert reported["real", "test/accuracy", seed] == pytest.approx(float(right))
    rows = [row for row in result.manifest["metrics"] if row["metric"] == "test/auroc"]
    assert all(row["ci_low"] <= row["value"] <= row["ci_high"] for row in rows)
    assert notes["training_counts"] == {"normal": 12, "bacteria": 12, "virus": 12}
    assert notes["classes"] == list(CLASSES)
    assert len(notes["test_sha256"]) == 64


def test_the_checkpoint_is_that_of_the_lowest_real_validation_loss(tmp_path: Path) -> None:
    """Validation labels that are wrong: the better the classes are learned, the higher that loss."""
    sets = real_sets()
    sets["val"] = dataclasses.replace(sets["val"], label=(sets["val"].label + 1) % 3)
    real = stored(tmp_path / "images", sets)
    result = classify(tmp_path / "tstr", real, real, 6, seeds=[1], schedule="constant")
    history = json.loads(result.file("history.json").read_text())
    losses = [row["val/loss"] for row in history]
    assert len(losses) == 6
    assert min(losses) < losses[-1]  # otherwise this test shows nothing
    assert values(result)["real", "val/loss", 1] == pytest.approx(min(losses))
    assert result.manifest["notes"]["best_epoch"] == {"1": losses.index(min(losses))}
    logits = open_densenet(result).logits(sets["val"].image)
    loss = torch.nn.functional.cross_entropy(logits, sets["val"].label)
    assert float(loss) == pytest.approx(min(losses), rel=1e-4)


def test_a_stored_classifier_gives_the_stored_scores_and_features_in_any_batches(
    tmp_path: Path, real: Artifact
) -> None:
    result = classify(tmp_path / "tstr", real, real, 2, seeds=[1])
    trained, test = open_densenet(result), real_sets()["test"].image
    assert (trained.task, trained.classes) == ("multiclass", CLASSES)
    torch.testing.assert_close(
        trained.probability(test, 7), result.load("scores.safetensors")["test.probability"]
    )
    features = trained.features(test, 11)
    assert features.shape == (30, trained.dim)
    with torch.inference_mode():
        torch.testing.assert_close(trained.network.head(features), trained.logits(test, 30))
    for bad in (test.float(), test.repeat(1, 3, 1, 1), test[0]):
        with pytest.raises(DataError, match=r"takes uint8 images \[n, 1, height, width\]"):
            trained.logits(bad)
    with pytest.raises(DataError, match="no images"):
        trained.features(test[:0])


def test_a_training_set_is_used_and_real_training_images_are_not(tmp_path: Path, real: Artifact) -> None:
    sets = real_sets()
    synthetic = stored(tmp_path / "made", {"train": made(sets["train"])})
    blank = dataclasses.replace(sets["train"], image=torch.zeros_like(sets["train"].image))
    other = stored(tmp_path / "blank", {**sets, "train": blank})
    one = classify(tmp_path / "a", synthetic, real, 1, seeds=[1]).load("scores.safetensors")
    two = classify(tmp_path / "b", synthetic, other, 1, seeds=[1]).load("scores.safetensors")
    assert equal(one, two)
    three = classify(tmp_path / "c", real, real, 1, seeds=[1]).load("scores.safetensors")
    assert not torch.equal(one["test.probability"], three["test.probability"])


def test_labels_of_a_multilabel_task_have_sigmoids_of_their_own(tmp_path: Path) -> None:
    sets = real_sets(task="multilabel")
    real = stored(tmp_path / "images", sets)
    result = classify(tmp_path / "tstr", real, real, seeds=[1], class_weights="balanced")
    scores = result.load("scores.safetensors")
    assert scores["test.label"].shape == (30, 3)
    torch.testing.assert_close(
        scores["test.probability"], open_densenet(result).logits(sets["test"].image).sigmoid()
    )
    assert ("real", "test/accuracy", 1) not in values(result)
    assert values(result)["real", "test/auroc", 1] > 0.8


def test_a_class_that_is_not_tested_has_no_auroc_and_is_named(tmp_path: Path) -> None:
    sets = real_sets()
    sets["test"] = sets["test"].rows(sets["test"].label != 2)
    real = stored(tmp_path / "images", sets)
    result = classify(tmp_path / "tstr", real, real, 1, seeds=[1])
    reported = values(result)
    assert math.isnan(reported["real", "test/auroc/virus", 1])
    pair = [reported["real", f"test/auroc/{name}", 1] for name in ("normal", "bacteria")]
    assert reported["real", "test/auroc", 1] == pytest.approx(sum(pair) / 2)
    assert result.manifest["notes"]["classes_without_auroc"] == ["virus"]


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_a_killed_training_goes_on_where_it_was(
    tmp_path: Path, real: Artifact, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, augmentation and learning rate included; killed after each epoch but the last."""
    changes = {
        "seeds": [1], "schedule": schedule, "augmentation": "shift", "max_shift": 1, "plateau_patience": 0,
        "plateau_factor": 0.5, "learning_rate": 0.1, "steps_per_epoch": 4,
    }  # fmt: skip
    validated, rates = DenseNetTraining.on_validation_epoch_end, []

    def recorded(self: DenseNetTraining) -> None:
        if self.current_epoch == killed_at:
            raise KeyboardInterrupt
        validated(self)
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    monkeypatch.setattr(DenseNetTraining, "on_validation_epoch_end", recorded)
    killed_at = -1
    whole = classify(tmp_path / "whole", real, real, 6, **changes)
    fell = [epoch for epoch in range(1, 6) if rates[epoch - 1] < (rates[epoch - 2] if epoch > 1 else 0.1)]
    assert (
        fell
    )  # otherwise this test shows nothing: the rate falls in an epoch whose checkpoint is gone on from
    for number in fell[:2]:
        killed_at = number
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            classify(tmp_path / f"cut{number}", real, real, 6, **changes)
        killed_at = -1
        again = classify(tmp_path / f"cut{number}", real, real, 6, **changes)
        for name in ("classifier.safetensors", "scores.safetensors"):
            assert equal(whole.load(name), again.load(name))
        assert whole.file("history.json").read_text() == again.file("history.json").read_text()


def test_images_that_cannot_train_it_are_refused_before_training(tmp_path: Path, real: Artifact) -> None:
    sets = real_sets()
    train = sets["train"]
    renamed = dataclasses.replace(train, classes=("a", "b", "c"))
    larger = dataclasses.replace(train, image=torch.zeros(36, 1, SIZE + 2, SIZE + 2, dtype=torch.uint8))
    labels = images(36, task="multilabel")
    cases: list[tuple[ImageSet, str]] = [
        (renamed, r"stages\.bad0 holds images with the classes \('a', 'b', 'c'\)"),
        (larger, r"stages\.bad1 holds images of shape \[1, 18, 18\]"),
        (labels, r"stages\.bad2 holds images with the task multilabel"),
        (train.rows(train.label == 1), r"stages\.bad3 holds 12 images .* needs two classes"),
    ]
    for number, (bad, message) in enumerate(cases):
        with pytest.raises(DataError, match=message):
            classify(tmp_path / f"t{number}", stored(tmp_path / f"bad{number}", {"train": bad}), real)


def test_weights_of_other_settings_are_refused(tmp_path: Path, real: Artifact) -> None:
    result = classify(tmp_path / "tstr", real, real, 1, seeds=[1])
    settings = dict(result.manifest["settings"], growth_rate=5)
    bad = found(result.path, settings, Outcome(notes=result.manifest["notes"]))
    with pytest.raises(ArtifactError, match="does not fit its own settings"):
        open_densenet(bad)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"network": "resnet50"}, "network"),
        ({"block_config": []}, "block_config"),
        ({"weights": "imagenet"}, "weights"),
        ({"network": "densenet121", "weights": "/absent/densenet121.pth"}, "weights"),
        ({"network": "densenet121", "input_size": 28}, "input_size"),
        ({"augmentation": "crop_flip"}, "input_size"),
        ({"test_views": "ten_crop", "input_size": 32, "resize_size": 30}, "resize_size"),
        ({"augmentation": "rotate"}, "augmentation"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"batch_size": 1}, "batch_size"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_settings("tstr_densenet", **changes)
    assert caught.value.key == f"stages.tiny.{key}"


def test_the_paper_s_classifier_is_one_option_away() -> None:
    given = defaults("tstr_densenet", "densenet121")
    wanted = {
        "network": "densenet121", "weights": "imagenet", "input_size": 224, "resize_size": 256,
        "augmentation": "crop_flip", "test_views": "ten_crop", "optimizer": "adam", "learning_rate": 1e-4,
        "weight_decay": 1e-5, "schedule": "plateau", "plateau_factor": 0.1, "plateau_patience": 5,
        "batch_size": 16, "steps_per_epoch": None,
    }  # fmt: skip
    assert {name: given[name] for name in wanted} == wanted
