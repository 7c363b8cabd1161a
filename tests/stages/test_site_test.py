"""Classifiers on other sites: the numbers are those of the stored networks, all seeds; what does not fit is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_densenet import CLASSES, SIZE, images, made, real_sets, stored, tiny_settings
from tiny_stages import TRAINER, equal, found, run_stage, stage_context, values

from fedsynth.composition import compose_config, resolved
from fedsynth.errors import ArtifactError, ConfigError, DataError, PrivateInputError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import PlannedStage, plan_stages
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import Outcome, Sensitivity, Side, find_stage
from fedsynth.run_sources import planner_sources
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.tstr_densenet.augmentation import ten_views
from fedsynth.stages.tstr_densenet.module import gray_levels
from fedsynth.stages.tstr_densenet.trained import open_densenet

STAGE = find_stage("site_test", "site_test")
FIRST_OTHER = 9000


def settings(**changes: Any) -> Any:
    given = {"arm": "real", "num_bootstrap": 40, "evaluation_batch_size": 7} | changes
    return build_settings(STAGE.settings, given, "stages.tiny")


def train(folder: Path, sets: Mapping[str, ImageSet], **changes: Any) -> Artifact:
    real = stored(folder / "images", sets)
    return run_stage(
        "tstr_densenet", tiny_settings("tstr_densenet", **changes), {"train": real, "images": real},
        stage_context(folder / "tstr", 3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train(tmp_path_factory.mktemp("own"), real_sets())


def other_site(folder: Path, **options: Any) -> tuple[Artifact, ImageSet]:
    """Noisier images of other people, in another order of sizes."""
    one = images(42, **{"seed": 50, "first_patient": FIRST_OTHER, "noise": 110.0} | options)
    return stored(folder, {"train": one, "val": one, "test": one}, site=1), one


def score_on(folder: Path, classifier: Artifact, on: Artifact, **changes: Any) -> Artifact:
    inputs = {"classifier": classifier, "images": on}
    return run_stage("site_test", settings(**changes), inputs, stage_context(folder / "test"))


def test_every_seed_has_the_numbers_of_its_own_stored_network(tmp_path: Path, classifier: Artifact) -> None:
    site, test = other_site(tmp_path / "site1")
    result = score_on(tmp_path, classifier, site)
    reported, scores = values(result), result.load("scores.safetensors")
    assert {seed for _, _, seed in reported} == {1, 2}
    for row, seed in enumerate((1, 2)):
        logits = open_densenet(classifier, seed=seed).logits(test.image)
        probability = scores["test.probability_by_seed"][row]
        torch.testing.assert_close(probability, logits.softmax(1))
        by_class = [roc_auc_score(test.label == k, probability[:, k].double()) for k in range(3)]
        for name, value in zip(CLASSES, by_class, strict=True):
            assert reported["real", f"test/auroc/{name}", seed] == pytest.approx(value)
        assert reported["real", "test/auroc", seed] == pytest.approx(sum(by_class) / 3)
        right = (probability.argmax(1) == test.label).double().mean()
        assert reported["real", "test/accuracy", seed] == pytest.approx(float(right))
    rows = [row for row in result.manifest["metrics"] if row["metric"] == "test/auroc"]
    assert all(row["ci_low"] <= row["value"] <= row["ci_high"] for row in rows)
    assert test.patient is not None
    assert torch.equal(scores["test.patient"], test.patient)
    assert torch.equal(scores["test.label"], test.label)
    assert result.manifest["notes"]["site"] == 1


def test_on_its_own_test_images_it_says_what_the_classifier_says(
    tmp_path: Path, classifier: Artifact
) -> None:
    """Estimates, intervals and scores: the same function of the same networks."""
    own = stored(tmp_path / "own", real_sets())
    result = score_on(tmp_path, classifier, own)
    wanted = [row for row in classifier.manifest["metrics"] if row["metric"] != "val/loss"]
    for row, other in zip(result.manifest["metrics"], wanted, strict=True):
        assert (row["arm"], row["metric"], row["seed"]) == (other["arm"], other["metric"], other["seed"])
        for name in ("value", "ci_low", "ci_high"):
            assert row[name] == pytest.approx(other[name])
    mine, theirs = (one.load("scores.safetensors") for one in (result, classifier))
    for name in ("probability_by_seed", "label", "patient"):
        torch.testing.assert_close(mine[f"test.{name}"], theirs[f"test.{name}"])
    assert result.manifest["notes"]["test_sha256"] == classifier.manifest["notes"]["test_sha256"]


def test_only_test_images_count(tmp_path: Path, classifier: Artifact) -> None:
    site, test = other_site(tmp_path / "a")
    blank = dataclasses.replace(test, image=torch.zeros_like(test.image))
    changed = stored(tmp_path / "b", {"train": blank, "val": blank, "test": test})
    one, two = (
        score_on(tmp_path / name, classifier, on).load("scores.safetensors")
        for name, on in (("one", site), ("two", changed))
    )
    assert equal(one, two)


def test_a_class_that_the_site_lacks_is_named(tmp_path: Path, classifier: Artifact) -> None:
    _, test = other_site(tmp_path / "a")
    site = stored(tmp_path / "b", {"test": test.rows(test.label != 1)})
    result = score_on(tmp_path, classifier, site)
    assert result.manifest["notes"]["classes_without_auroc"] == ["bacteria"]
    pair = [values(result)["real", f"test/auroc/{name}", 2] for name in ("normal", "virus")]
    assert values(result)["real", "test/auroc", 2] == pytest.approx(sum(pair) / 2)


def test_views_are_those_of_the_classifier(tmp_path: Path) -> None:
    crops = {"test_views": "ten_crop", "input_size": SIZE, "resize_size": SIZE + 4, "seeds": [3]}
    classifier = train(tmp_path / "own", real_sets(), **crops)
    site, test = other_site(tmp_path / "site1")
    probability = score_on(tmp_path, classifier, site).load("scores.safetensors")["test.probability_by_seed"][
        0
    ]
    network = open_densenet(classifier).network
    with torch.inference_mode():
        views = ten_views(gray_levels(test.image), SIZE + 4, SIZE)
        wanted = torch.stack([network(view).softmax(1) for view in views]).mean(0)
    torch.testing.assert_close(probability, wanted)


def test_images_that_do_not_fit_are_refused(tmp_path: Path, classifier: Artifact) -> None:
    _, test = other_site(tmp_path / "a")
    cases = [
        (
            dataclasses.replace(test, classes=("virus", "bacteria", "normal")),
            r"the classes of .*'virus', 'bact",
        ),
        (
            images(20, task="multilabel", first_patient=FIRST_OTHER),
            "the task of its test images is multilabel",
        ),
        (
            dataclasses.replace(test, image=torch.zeros(42, 1, SIZE + 4, SIZE + 4, dtype=torch.uint8)),
            r"the image shape of its test images is \[1, 20, 20\]",
        ),
    ]
    for number, (bad, message) in enumerate(cases):
        site = stored(tmp_path / f"bad{number}", {"test": bad})
        with pytest.raises(DataError, match=rf"stages\.tstr cannot .* stages\.bad{number}: {message}"):
            score_on(tmp_path / f"t{number}", classifier, site)


def test_patients_that_the_classifier_was_trained_on_are_refused(
    tmp_path: Path, classifier: Artifact
) -> None:
    site, _ = other_site(tmp_path / "site1", first_patient=15)  # training patients are 0 to 17
    with pytest.raises(DataError, match=r"trained on 3 of the test patients of stages\.site1.*site_seed"):
        score_on(tmp_path, classifier, site)


def test_a_made_training_set_names_no_patients_and_is_tested(tmp_path: Path) -> None:
    sets = real_sets()
    real, synthetic = (
        stored(tmp_path / "images", sets),
        stored(tmp_path / "made", {"train": made(sets["train"])}),
    )
    classifier = run_stage(
        "tstr_densenet", tiny_settings("tstr_densenet", seeds=[1]), {"train": synthetic, "images": real},
        stage_context(tmp_path / "tstr", 1),
    )  # fmt: skip
    assert "train.patient" not in classifier.load("scores.safetensors")
    site, _ = other_site(tmp_path / "site1", first_patient=15)
    assert ("real", "test/auroc", 1) in values(score_on(tmp_path, classifier, site))


def test_a_multilabel_classifier_is_tested_by_label(tmp_path: Path) -> None:
    classifier = train(tmp_path / "own", real_sets(task="multilabel"), seeds=[1])
    site, test = other_site(tmp_path / "site1", task="multilabel")
    result = score_on(tmp_path, classifier, site)
    probability = result.load("scores.safetensors")["test.probability_by_seed"][0]
    torch.testing.assert_close(probability, open_densenet(classifier).logits(test.image).sigmoid())
    assert ("real", "test/accuracy", 1) not in values(result)


def test_weights_of_every_seed_are_kept_and_no_others(tmp_path: Path, classifier: Artifact) -> None:
    test = real_sets()["test"].image
    by_seed = classifier.load("scores.safetensors")["test.probability_by_seed"]
    for row, seed in enumerate((1, 2)):
        torch.testing.assert_close(open_densenet(classifier, seed=seed).probability(test), by_seed[row])
    torch.testing.assert_close(open_densenet(classifier).probability(test), by_seed[0])
    assert not torch.allclose(by_seed[0], by_seed[1])
    names = {path.name for path in classifier.path.glob("classifier*")}
    assert names == {"classifier.safetensors", "classifier-2.safetensors"}
    with pytest.raises(ArtifactError, match=r"classifiers of the seeds \[1, 2\], none of seed 3"):
        open_densenet(classifier, seed=3)
    other = dict(classifier.manifest["settings"], growth_rate=5)
    damaged = found(classifier.path, other, Outcome(notes=classifier.manifest["notes"]))
    with pytest.raises(ArtifactError, match=r"classifier-2\.safetensors of .* does not fit its own settings"):
        open_densenet(damaged, seed=2)


def planned_supplier(name: str, arm: str, **inputs: str) -> Any:
    return SimpleNamespace(name=name, settings=SimpleNamespace(arm=arm), inputs=inputs)


@pytest.mark.parametrize(
    ("arm", "images_of", "key"), [("edm2", "b", "arm"), ("real", "a", "inputs.images"), ("real", "b", None)]
)
def test_another_arm_and_its_own_site_are_refused_when_planned(
    arm: str, images_of: str, key: str | None
) -> None:
    suppliers = {
        "classifier": planned_supplier("tstr", "real", train="a", images="a"),
        "images": planned_supplier(images_of, ""),
    }
    if key is None:
        STAGE.check_suppliers(settings(arm=arm), suppliers, "stages.t")
        return
    with pytest.raises(ConfigError) as caught:
        STAGE.check_suppliers(settings(arm=arm), suppliers, "stages.t")
    assert caught.value.key == f"stages.t.{key}"


# The whole of Table 2 as it is planned.


def planned(*words: str) -> dict[str, PlannedStage]:
    stages = resolved(compose_config(["experiment=pso_secure/table2", *words]))["stages"]
    return {one.name: one for one in plan_stages(stages, TRAINER, planner_sources({}))}


@pytest.fixture(scope="module")
def table2() -> dict[str, PlannedStage]:
    return planned()


def test_every_training_set_is_tested_on_every_site_once(table2: dict[str, PlannedStage]) -> None:
    pairs: list[tuple[str, str]] = []
    for one in table2.values():
        if one.stage.kind == "tstr_densenet":
            pairs.append((one.inputs["train"], one.inputs["images"]))
        if one.stage.kind == "site_test":
            pairs.append((table2[one.inputs["classifier"]].inputs["train"], one.inputs["images"]))
    sites = [f"images_{site}" for site in range(3)]
    sets = [f"{name}_{site}" for name in ("images", "reconstruction", "filtered") for site in range(3)]
    shared = ("shared", "shared_soft")
    wanted = {(one, site) for one in (*sets, *shared) for site in sites} | {
        (one, "images_all") for one in shared
    }
    assert len(pairs) == len(wanted) == 35
    assert set(pairs) == wanted


def test_each_site_uses_its_own_images_only_but_for_the_identity_network(
    table2: dict[str, PlannedStage],
) -> None:
    def real_images(name: str) -> set[str]:
        one = table2[name]
        behind = [real_images(supplier) for supplier in one.inputs.values()]
        return {name} if one.stage.kind == "xray_images" else set().union(*behind)

    for site in range(3):
        assert (
            real_images(f"tstr_real_{site}") == real_images(f"synthesize_images_{site}") == {f"images_{site}"}
        )
        assert real_images(f"filtered_{site}") == {f"images_{site}", "images_all"}
        assert table2[f"images_{site}"].settings.site == site
        arms = {table2[f"{kind}_{site}"].settings.arm for kind in ("filtered", "tstr_filtered")}
        assert arms == {f"diadm_features_filtered_site_{site}"}
    shares = [table2[name].settings for name in ("images_all", "images_0", "images_1", "images_2")]
    assert len({dataclasses.replace(one, site=None).__repr__() for one in shares}) == 1


def test_only_released_sets_reach_the_server(table2: dict[str, PlannedStage]) -> None:
    shared = table2["shared"]
    assert (shared.side, shared.sensitivity) == (Side.SERVER, Sensitivity.RELEASED)
    assert {table2[name].sensitivity for name in shared.inputs.values()} == {Sensitivity.RELEASED}
    for one in table2.values():
        if one.stage.kind == "site_test" or one.name == "tstr_shared":
            assert (one.side, one.sensitivity) == (Side.AUDITOR, Sensitivity.PRIVATE)
    with pytest.raises(PrivateInputError, match=r"stages\.shared runs on the server"):
        planned("stages.filtered_1.release=false")


def test_settings_are_those_for_two_cores_and_can_be_changed(table2: dict[str, PlannedStage]) -> None:
    for site in range(3):
        drawn = table2[f"synthesize_images_{site}"].settings
        assert (drawn.num_sources, drawn.num_candidates) == (None, 8)
        assert (table2[f"diadm_{site}"].settings.kimg, table2[f"diadm_{site}"].settings.decay_kimg) == (
            96,
            38.4,
        )
        assert table2[f"tstr_real_{site}"].settings.seeds == [42, 43]
    assert planned("image_network.kimg=4")["diadm_2"].settings.kimg == 4
    sites = [f"stages.images_{site}.site=null" for site in range(3)]
    hospitals = planned(
        "data=cxr_sites", *sites, "stages.images_1.dataset=mimic", "stages.images_2.dataset=chexpert"
    )
    names = [hospitals[f"images_{site}"].settings.dataset for site in range(3)]
    assert names == ["chestxray14", "mimic", "chexpert"]
