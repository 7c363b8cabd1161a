"""The identity network as a stage: it learns to tell persons apart, states its error rates, and resumes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_identities import identity_images, identity_settings, people, three_splits
from tiny_stages import equal, run_stage, stage_context, values

from fedsynth.attacks.reidentification import operating_point
from fedsynth.composition import compose_config, resolved
from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.stage import Sensitivity
from fedsynth.run_sources import planner_sources
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.reidentifier.held_out import VIEW_PAIRS
from fedsynth.stages.reidentifier.trained import check_strangers, open_reidentifier

ARM = "reidentifier"


def train(folder: Path, splits: dict[str, ImageSet], epochs: int = 4, **changes: Any) -> Artifact:
    images = identity_images(folder, splits)
    context = stage_context(folder / "reidentifier", epochs)
    return run_stage("reidentifier", identity_settings(**changes), {"images": images}, context)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train(tmp_path_factory.mktemp("trained"), three_splits())


def test_unseen_patients_are_told_apart(trained: Artifact) -> None:
    assert values(trained)[ARM, "test/auroc", 0] > 0.9
    assert trained.manifest["notes"]["held_out_pairs"] == "patients"


def test_paper_loss_learns_too(tmp_path: Path) -> None:
    made = train(tmp_path, three_splits(), epochs=8, loss="siamese_bce", negatives="hard", calibration="none")
    assert values(made)[ARM, "test/auroc", 0] > 0.7


def test_counts_of_pairs_are_exact(trained: Artifact) -> None:
    # Three images a patient make three pairs: 24 · 3 in training, 12 · 3 held out, two of two persons for each.
    held_out = {"one_person": 36, "two_persons": 72, "two_persons_of_other_class": 0, "patients": 12}
    assert trained.manifest["notes"]["pairs"] == {"train": 72, "val": held_out, "test": held_out}


def test_reopened_network_gives_the_stored_probabilities_whatever_the_batch(trained: Artifact) -> None:
    network = open_reidentifier(trained)
    image = three_splits()["val"].image
    embedding = network.embed(image)
    # Evaluation mode: an image's embedding is its own, also alone and among copies.
    assert torch.allclose(network.embed(image, batch_size=1), embedding, atol=1e-5)
    stored = trained.load("calibration.safetensors")
    patient = three_splits()["val"].patient
    first, second = torch.combinations(torch.arange(len(image)), 2).T
    probability = network.probability(embedding[first], embedding[second])
    same = patient[first] == patient[second]
    wanted = stored["probability"][stored["is_same"] == 1].sort().values
    assert torch.allclose(probability[same].sort().values, wanted, atol=1e-4)
    assert set(stored["label"].tolist()) == {0, 1}


def test_who_trained_the_network_is_stored_and_must_not_be_held_out(
    tmp_path: Path, trained: Artifact
) -> None:
    splits = three_splits()
    assert torch.equal(trained.load("patients.safetensors")["train"], torch.arange(24))
    assert check_strangers(trained, identity_images(tmp_path / "same", splits), "select")
    seen = {**splits, "test": people(range(20, 30))}
    with pytest.raises(DataError, match=r"stages\.select\.inputs.* 4 patients whom images holds out in test"):
        check_strangers(trained, identity_images(tmp_path / "seen", seen), "select")
    unknown = {split: replace(images, patient=None) for split, images in splits.items()}
    assert not check_strangers(trained, identity_images(tmp_path / "unknown", unknown), "select")


def test_metrics_are_those_of_the_stored_probabilities(trained: Artifact) -> None:
    stored, tested = (trained.load(f"{name}.safetensors") for name in ("calibration", "test_pairs"))
    point = operating_point(stored["probability"], stored["is_same"], "fpr", 0.2)
    found = values(trained)
    assert found[ARM, "threshold", 0] == point.threshold
    assert (found[ARM, "fnr", 0], found[ARM, "fpr", 0]) == (point.fnr.share, point.fpr.share)
    assert found[ARM, "test/auroc", 0] == pytest.approx(
        roc_auc_score(tested["is_same"], tested["probability"])
    )
    flagged = tested["probability"].double() > point.threshold
    assert found[ARM, "test/fpr", 0] == pytest.approx(float(flagged[tested["is_same"] == 0].double().mean()))
    table = trained.manifest["notes"]["operating_points"]
    assert [row["rule"] for row in table if row["configured"]] == ["fpr"]
    assert set(trained.manifest["notes"]["classes"]) == {"even", "odd"}


def test_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    images = identity_images(tmp_path, three_splits())
    folder = tmp_path / "reidentifier"

    # Two of four epochs as a kill leaves them, at a constant rate: a shorter run would follow another schedule.
    settings = identity_settings(decay="constant")
    whole = run_stage("reidentifier", settings, {"images": images}, stage_context(tmp_path / "whole", 4))
    run_stage("reidentifier", settings, {"images": images}, stage_context(folder, 2))
    resumed = run_stage("reidentifier", settings, {"images": images}, stage_context(folder, 4))
    names = "reidentifier.safetensors"
    assert equal(whole.load(names), resumed.load(names))


def test_augmentation_pairs_need_no_patients(tmp_path: Path) -> None:
    # Smooth images: views of noise have nothing in common.
    splits = {
        split: replace(smooth(images), patient=None) for split, images in three_splits(per_patient=1).items()
    }
    made = train(tmp_path, splits, epochs=8, pairs="augmentation")
    assert made.manifest["notes"]["held_out_pairs"] == VIEW_PAIRS
    assert made.manifest["notes"]["pairs"]["train"] == 0
    assert values(made)[ARM, "test/auroc", 0] > 0.8


def smooth(images: ImageSet) -> ImageSet:
    coarse = torch.nn.functional.adaptive_avg_pool2d(images.image.float(), 3)
    finer = torch.nn.functional.interpolate((coarse - 128) * 3 + 128, (12, 12), mode="bilinear")
    return replace(images, image=finer.round().clamp(0, 255).to(torch.uint8))


def test_a_network_that_cannot_tell_pairs_is_warned_of(
    tmp_path: Path, trained: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    splits = three_splits()
    # Held out, everybody has the same three images but for a gray level of noise: none of one person are as near.
    noise = torch.randint(0, 2, (36, 1, 12, 12), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    image = splits["val"].image[:3].clamp(max=254).repeat(12, 1, 1, 1) + noise
    splits["val"] = replace(splits["val"], image=image)
    with caplog.at_level(logging.WARNING):
        made = train(tmp_path, splits)
    assert values(made)[ARM, "val/auroc", 0] <= 0.5
    assert made.manifest["notes"]["cannot_tell"] is True
    assert len(made.load("calibration.safetensors")["probability"].unique()) == 1
    for part in ("cannot tell pairs", "reidentification.max_epochs", "infonce_mix"):
        assert part in caplog.text
    assert trained.manifest["notes"]["cannot_tell"] is False


def test_labels_of_a_multi_label_task_are_stored_as_they_are(tmp_path: Path) -> None:
    made = train(tmp_path, three_splits(multilabel=True), epochs=1)
    assert made.load("calibration.safetensors")["label"].shape == (108, 2)


def test_one_image_a_patient_is_refused_with_the_option_that_needs_none(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no pair of one person \(12 images, 12 patients.*pairs=augmentation"
    ):
        train(tmp_path, three_splits(per_patient=1))


def test_copies_of_one_image_are_no_pair(tmp_path: Path) -> None:
    splits = three_splits()
    copies = splits["train"].image[::3].repeat_interleave(3, 0)
    with pytest.raises(DataError, match="the train images hold no pair of one person"):
        train(tmp_path, splits | {"train": replace(splits["train"], image=copies)})


def test_patient_in_two_splits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 patients are in both train and test \(numbers 23\)"):
        train(tmp_path, three_splits() | {"test": people(range(23, 30))})


def test_split_of_one_patient_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the val images are all of one patient"):
        train(tmp_path, three_splits() | {"val": people(range(30, 31))})


def test_images_of_another_size_or_mode_are_refused(trained: Artifact) -> None:
    network = open_reidentifier(trained)
    with pytest.raises(DataError, match=r"shape \[n, 1, 12, 12\], got torch\.uint8 \[2, 1, 14, 14\]"):
        network.embed(torch.zeros(2, 1, 14, 14, dtype=torch.uint8))
    with pytest.raises(DataError, match=r"torch\.float32"):
        network.embed(torch.zeros(2, 1, 12, 12))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"calibration": "none"}, "calibration"),
        ({"negatives": "hard"}, "negatives"),
        ({"threshold_rule": "youden"}, "threshold_value"),
        ({"threshold_value": None}, "threshold_value"),
        ({"augmentation": 0.0}, "augmentation"),
        ({"pairs": "augmentation", "steps_per_epoch": None}, "steps_per_epoch"),
        ({"weights": "download"}, "weights"),
        ({"backbone": "resnet50"}, "backbone"),
        ({"channels": []}, "channels"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        identity_settings(**changes).check("stages.reidentifier")
    assert error.value.key == f"stages.reidentifier.{key}"


@pytest.mark.parametrize(
    ("option", "loss", "batch_size"), [("small", "infonce_mix", 128), ("resnet50", "siamese_bce", 32)]
)
def test_config_groups_fill_every_setting_of_a_private_stage(option: str, loss: str, batch_size: int) -> None:
    words = [
        "+data=kermany", f"+reidentification={option}", "+stage@stages.images=xray_images",
        "+stage@stages.reidentifier=reidentifier", "experiment_name=tiny",
    ]  # fmt: skip
    planned = plan_stages(resolved(compose_config(words))["stages"], {}, planner_sources({}))[-1]
    assert (planned.settings.loss, planned.settings.batch_size) == (loss, batch_size)
    assert planned.sensitivity is Sensitivity.PRIVATE
