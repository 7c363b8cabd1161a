"""The audit of released images: what its numbers must be where the answer is known, or can be counted by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tiny_audited import (
    audit_inputs,
    audit_settings,
    audited,
    encoder_settings,
    gathered,
    made_set,
    number,
    only,
    people,
    real_sets,
    reidentifier,
    stored_images,
)
from tiny_stages import equal, values

from fedsynth.errors import ConfigError, DataError
from fedsynth.evaluation.frechet import frechet_distance
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import Side
from fedsynth.stages.audit_images.agreement import torchmetrics_fid
from fedsynth.stages.audit_images.spaces import make_space
from fedsynth.stages.audit_images.spec import STAGE, AuditImagesSettings
from fedsynth.stages.pseudo_features.stored import open_encoder
from fedsynth.stages.reidentifier.trained import open_reidentifier

CONFIGS = Path(__file__).parents[2] / "configs"
PIXELS = "/pixel_pca12"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return audit_inputs(tmp_path_factory.mktemp("audited"))


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Artifact]) -> Artifact:
    """The audit of the training images themselves."""
    train = real_sets()["train"]
    released = made_set(train.image, torch.arange(len(train)), train)
    return audited(tmp_path_factory.mktemp("copies"), inputs, released)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Artifact]) -> Artifact:
    """The audit of images of other people, said to be made of training images."""
    train, others = real_sets()["train"], people(50, torch.Generator().manual_seed(8))
    source = torch.randint(len(train), (50,), generator=torch.Generator().manual_seed(9))
    return audited(tmp_path_factory.mktemp("strangers"), inputs, made_set(others.image, source, train))


@pytest.mark.parametrize("space", ["", PIXELS, f"{PIXELS}_val", "/classifier", "/reidentifier"])
def test_copies_are_found_out_by_every_test(copies: Artifact, space: str) -> None:
    found = values(copies)
    for quantity in ("self_retrieval/rate", "isolation/largest_unseen"):
        assert number(found, f"{quantity}{space}") == 1.0
    # Released copies are the positive control; the tests must not tell them apart.
    for quantity in (
        "self_retrieval/rate",
        "isolation/isolating",
        "isolation/unseen",
        "residual_risk/estimate",
    ):
        assert number(found, f"{quantity}{space}") == number(found, f"control/positive/{quantity}{space}")
    if space in ("", PIXELS):
        assert number(found, f"frechet/train{space}") == pytest.approx(0, abs=1e-4)
        assert number(found, f"irs/alpha{space}") == 1.0


def test_copies_are_reidentified(copies: Artifact) -> None:
    found = values(copies)
    assert number(found, "reid/source_rate") == 1.0
    assert number(found, "reid/largest_similarity_exceeding") == 1.0
    assert number(found, "reid/largest_similarity_auroc") == 1.0


@pytest.mark.parametrize("space", ["", PIXELS, f"{PIXELS}_val", "/classifier", "/reidentifier"])
def test_images_of_other_people_are_at_chance(strangers: Artifact, space: str) -> None:
    rows = {row["metric"]: row for row in strangers.manifest["metrics"]}
    for prefix in ("", "control/negative/", "control/independent/"):
        row = rows[f"{prefix}self_retrieval/rate{space}"]
        assert row["ci_low"] <= 1 / len(real_sets()["train"]) <= row["ci_high"]
        risk = rows.get(f"{prefix}residual_risk/estimate{space}")
        assert risk is None or risk["ci_low"] <= 0.2
    assert rows[f"control/positive/self_retrieval/rate{space}"]["value"] == 1.0


def test_other_people_are_not_closer_than_held_out_ones(strangers: Artifact) -> None:
    rows = {row["metric"]: row for row in strangers.manifest["metrics"]}
    assert rows["reid/largest_similarity_exceeding"]["ci_low"] <= 0.05
    assert 0.3 < rows["reid/largest_similarity_auroc"]["value"] < 0.7


def test_self_retrieval_and_isolation_counted_by_hand(
    strangers: Artifact, inputs: dict[str, Artifact]
) -> None:
    others = people(50, torch.Generator().manual_seed(8)).image
    train = inputs["features"].load("features.safetensors")["train.feature"].double()
    released = open_encoder(inputs["features"], None).features(others, 64).double()
    distance = (released.unsqueeze(1) - train.unsqueeze(0)).norm(dim=2)
    source = torch.randint(len(train), (50,), generator=torch.Generator().manual_seed(9))
    found = values(strangers)
    rate = float((distance.argmin(1) == source).double().mean())
    assert number(found, "self_retrieval/rate") == pytest.approx(rate)
    curve = {
        name.partition(".")[2]: column
        for name, column in strangers.load("isolation.safetensors").items()
        if name.startswith("timm:test_resnet/released.")
    }
    radius = curve["radius"]
    assert torch.equal(radius, radius.sort().values)
    inside = (distance.unsqueeze(0) <= radius.view(-1, 1, 1)).sum(2)
    torch.testing.assert_close(curve["isolating"], (inside == 1).double().mean(1))
    # The radius fixed beforehand is one of the curve's.
    assert number(found, "isolation/isolating") in curve["isolating"].tolist()


def test_reidentification_counted_by_hand(strangers: Artifact, inputs: dict[str, Artifact]) -> None:
    network = open_reidentifier(inputs["reidentifier"])
    train = network.embed(real_sets()["train"].image)
    made = network.embed(people(50, torch.Generator().manual_seed(8)).image)
    source = torch.randint(len(train), (50,), generator=torch.Generator().manual_seed(9))
    threshold = strangers.manifest["notes"]["threshold"]
    assert threshold["fpr"] <= 0.1
    flagged = network.probability(made, train[source]) > threshold["threshold"]
    assert number(values(strangers), "reid/source_rate") == pytest.approx(float(flagged.double().mean()))
    pairs = torch.stack([network.probability(one.expand_as(train), train).max() for one in made])
    stored = strangers.load("isolation.safetensors")["reidentifier/released.largest_similarity"]
    # Rounding of 16 sigmoids at weights of 1e4: 16 · 6e-8 · 1e4 in the logit, a quarter of it in the probability.
    torch.testing.assert_close(stored.float(), pairs, rtol=0, atol=2.5e-3)


def test_distances_are_named_by_encoder_and_have_a_floor_of_equal_size(
    strangers: Artifact, inputs: dict[str, Artifact]
) -> None:
    stored = inputs["features"].load("features.safetensors")
    notes, found = strangers.manifest["notes"], values(strangers)
    assert notes["encoder"]["encoder"] == "timm:test_resnet"
    assert notes["spaces"]["timm:test_resnet"]["is_primary"]
    assert notes["spaces"]["timm:test_resnet"]["frechet"]["equal"] == len(stored["val.feature"])
    floor = frechet_distance(real=stored["train.feature"], synthetic=stored["val.feature"])
    assert number(found, "frechet/floor") == pytest.approx(floor)
    for row in notes["spaces"]["pixel_pca12"]["irs"]:
        assert row["irs_alpha"] == row["k"] / row["N"]
        assert row["irs_inf_low"] <= row["irs_inf"] <= row["irs_inf_high"] or row["is_more_even_than_chance"]
    assert number(found, f"irs/inf_a{PIXELS}") <= number(found, f"irs/inf_a_ceiling{PIXELS}")


def test_the_table_says_what_was_tested_and_never_that_it_is_secure(strangers: Artifact) -> None:
    table = strangers.manifest["notes"]["table"]
    columns = {"test", "space", "quantity", "value", "low", "high", "chance_or_control", "note"}
    assert all(set(row) == columns for row in table)
    assert {row["test"] for row in table} == {"T1", "T2", "T3", "T4", "T5", "re-identification"}
    text = json.dumps(strangers.manifest["notes"], allow_nan=False).lower()
    assert "pso" not in text
    assert "secure" not in text


def test_the_same_seed_gives_the_same_audit(
    tmp_path: Path, strangers: Artifact, inputs: dict[str, Artifact]
) -> None:
    train, others = real_sets()["train"], people(50, torch.Generator().manual_seed(8))
    source = torch.randint(len(train), (50,), generator=torch.Generator().manual_seed(9))
    again = audited(tmp_path, inputs, made_set(others.image, source, train))
    assert values(again) == values(strangers)
    assert equal_with_nan(again.load("isolation.safetensors"), strangers.load("isolation.safetensors"))


def equal_with_nan(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return equal({name: value.nan_to_num(-9) for name, value in first.items()},
                 {name: value.nan_to_num(-9) for name, value in second.items()})  # fmt: skip


def test_a_union_of_sites_is_audited_without_sources(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    train = real_sets()["train"]
    whole = made_set(train.image, torch.arange(len(train)), train)
    released = replace(whole, source=whole.source + 5000)
    made = audited(tmp_path, only(inputs, "reidentifier"), released, kind="data_sharing")
    found = values(made)
    assert ("made", "self_retrieval/rate", 42) not in found
    assert ("made", "reid/source_rate", 42) not in found
    assert not made.manifest["notes"]["records"]["sources_known"]
    # Isolation needs no sources and finds the copies all the same.
    assert number(found, "isolation/largest_unseen") == 1.0
    assert number(found, "control/positive/self_retrieval/rate") == 1.0


def test_subsets_keep_every_source_and_say_so(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    train = real_sets()["train"]
    whole = made_set(train.image, torch.arange(len(train)), train)
    records = gathered(tmp_path, inputs, whole, max_released=10, max_train=25)
    assert (len(records.released), len(records.train_rows)) == (10, 25)
    assert torch.equal(records.train_rows[records.source], records.released.source)
    assert torch.equal(train.image[records.train_rows[records.source]], records.released.image)
    assert records.notes["released"] == [10, 60]
    assert records.notes["train"] == [25, 60]
    with pytest.raises(ConfigError, match="max_train must be at least 60"):
        gathered(tmp_path / "again", inputs, whole, max_train=25)


def test_controls_are_different_people_who_were_not_trained_on(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    real = real_sets()
    train = real["train"]
    released = made_set(train.image[:20], torch.arange(20), train)
    for held_out, splits in (("test", ["test"]), ("val_test", ["val", "test"])):
        records = gathered(tmp_path / held_out, inputs, released, held_out=held_out)
        patient = torch.cat([real[split].patient for split in splits])
        negative, control = (set(patient[rows].tolist()) for rows in (records.negative, records.control))
        assert not negative & control
        assert len(records.negative) + len(records.control) == len(patient)
        assert len(records.negative) == 20


def test_a_patient_on_both_sides_is_refused(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    real = real_sets()
    train = real["train"]
    real["test"] = replace(real["test"], patient=real["test"].patient - 2000)
    images = stored_images(tmp_path / "images", "xray_images", **real)
    with pytest.raises(DataError, match="both in training and held out"):
        gathered(tmp_path, {**inputs, "images": images}, made_set(train.image, torch.arange(60), train))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: replace(made, source=None), "do not name the training image"),
        (lambda made: replace(made, source=made.source + 1), "sources from 1 to 60"),
        (lambda made: replace(made, classes=("a", "b", "c")), "classes a, b, c"),
        (lambda made: replace(made, image=made.image[..., :8]), r"have shape \[1, 16, 8\]"),
    ],
)
def test_sets_that_do_not_fit_the_real_images_are_refused(
    tmp_path: Path, inputs: dict[str, Artifact], change: Any, message: str
) -> None:
    train = real_sets()["train"]
    with pytest.raises(DataError, match=message):
        gathered(tmp_path, inputs, change(made_set(train.image, torch.arange(60), train)))


@pytest.mark.parametrize(
    ("changes", "key"), [({"nearest_k": 30}, "nearest_k"), ({"similarity_level": 0.001}, "similarity_level")]
)
def test_too_few_images_are_refused_before_any_is_encoded(
    tmp_path: Path,
    inputs: dict[str, Artifact],
    changes: dict[str, Any],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedsynth.stages.audit_images.run.open_spaces", None)
    train = real_sets()["train"]
    with pytest.raises(ConfigError) as error:
        audited(tmp_path, inputs, made_set(train.image, torch.arange(60), train), **changes)
    assert error.value.key.endswith(key)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"threshold_rule": "youden"}, "threshold_value"),
        ({"threshold_value": None}, "threshold_value"),
        ({"max_released": 3}, "max_released"),
        ({"max_train": 2}, "max_train"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        audit_settings(**changes).check("stages.audit")
    assert error.value.key == f"stages.audit.{key}"


def planned(name: str, kind: str = "", **inputs: str) -> SimpleNamespace:
    """A planned stage, as suppliers are given to the check."""
    return SimpleNamespace(
        name=name,
        stage=SimpleNamespace(kind=kind),
        settings=encoder_settings(),
        inputs={"images": "images", **inputs},
    )


def suppliers(**changes: SimpleNamespace) -> dict[str, SimpleNamespace]:
    return {
        "images": planned("images"),
        "features": planned("features"),
        "reidentifier": planned("identity"),
        "classifier": planned("real", train="images"),
        "released": planned("made", "select_images"),
        "independent": planned("none", "select_images"),
        **changes,
    }


def test_inputs_of_the_same_images_are_accepted_and_a_union_may_be_of_other_ones() -> None:
    STAGE.check_suppliers(audit_settings(), suppliers(), "stages.audit")
    union = SimpleNamespace(
        name="union", stage=SimpleNamespace(kind="data_sharing"), inputs={"first": "made"}
    )
    STAGE.check_suppliers(audit_settings(), suppliers(released=union), "stages.audit")


@pytest.mark.parametrize("role", ["features", "classifier", "released", "independent"])
def test_inputs_made_of_other_images_are_refused(role: str) -> None:
    other = planned("other", "select_images", images="elsewhere", train="images")
    with pytest.raises(ConfigError, match="is made of those of 'elsewhere'") as error:
        STAGE.check_suppliers(audit_settings(), suppliers(**{role: other}), "stages.audit")
    assert error.value.key == f"stages.audit.inputs.{role}"


@pytest.mark.parametrize(
    ("dataset", "split_seed", "is_refused"),
    [("kermany", 1, True), ("kermany", 0, False), ("nih1000", 1, False)],
)
def test_an_identity_network_of_the_same_people_split_otherwise_is_refused(
    dataset: str, split_seed: int, is_refused: bool
) -> None:
    def images(name: str, dataset: str, split_seed: int) -> SimpleNamespace:
        split = {"split": "patient", "split_fractions": [0.7, 0.1, 0.2], "num_sites": 1, "site_seed": 0}
        settings = SimpleNamespace(dataset=dataset, split_seed=split_seed, **split)
        return SimpleNamespace(name=name, settings=settings)

    network = planned("identity", images="elsewhere")
    network.suppliers = {"images": images("elsewhere", dataset, split_seed)}
    given = suppliers(images=images("images", "kermany", 0), reidentifier=network)
    if not is_refused:
        STAGE.check_suppliers(audit_settings(), given, "stages.audit")
        return
    with pytest.raises(ConfigError, match="split_seed 1 and 0") as error:
        STAGE.check_suppliers(audit_settings(), given, "stages.audit")
    assert error.value.key == "stages.audit.inputs.reidentifier"


def test_an_identity_network_that_knows_held_out_people_is_refused_before_any_image_is_encoded(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsynth.stages.audit_images.run.open_spaces", None)
    network = reidentifier(tmp_path / "reidentifier", patients=real_sets()["test"].patient[:3])
    train = real_sets()["train"]
    with pytest.raises(DataError, match="trained on 2 patients whom images holds out in test"):
        audited(tmp_path, {**inputs, "reidentifier": network}, made_set(train.image, torch.arange(60), train))


def test_features_of_a_classifier_need_that_classifier() -> None:
    features = planned("f", classifier="real")
    features.settings = encoder_settings(encoder="classifier")
    given = suppliers(features=features)
    STAGE.check_suppliers(audit_settings(), given, "stages.audit")
    for wrong, message in (
        ({"classifier": planned("real_2", train="images")}, "must be 'real', whose features f are"),
        ({"classifier": planned("real", train="made")}, "must be trained on the real images 'images'"),
    ):
        with pytest.raises(ConfigError, match=message):
            STAGE.check_suppliers(audit_settings(), {**given, **wrong}, "stages.audit")
    del given["classifier"]
    with pytest.raises(ConfigError, match=r"inputs\.classifier is missing"):
        STAGE.check_suppliers(audit_settings(), given, "stages.audit")


@pytest.mark.parametrize("split", ["train", "test"])
def test_features_of_other_images_are_refused(
    tmp_path: Path, inputs: dict[str, Artifact], split: str
) -> None:
    real = real_sets()
    real[split] = real[split].rows(torch.arange(40))
    images = stored_images(tmp_path / "images", "xray_images", **real)
    released = made_set(real["train"].image, torch.arange(len(real["train"])), real["train"])
    with pytest.raises(DataError, match=rf"features of 60 {split} images, but stages\.images has 40"):
        audited(tmp_path, {**inputs, "images": images}, released)


def test_the_config_fills_the_stage_and_is_the_auditors() -> None:
    config = OmegaConf.create({
        "seed": 42, "evaluation": OmegaConf.load(CONFIGS / "evaluation/default.yaml"),
        "stage": OmegaConf.load(CONFIGS / "stage/audit_images.yaml"),
    })  # fmt: skip
    config.stage.arm, config.stage.inputs.released = "made", "select_images"
    values_: Any = OmegaConf.to_container(config, resolve=True)
    stage = values_["stage"]
    assert stage.pop("stage") == STAGE.kind
    inputs_ = stage.pop("inputs")
    assert set(inputs_) == {*STAGE.roles, *STAGE.optional_roles}
    assert inputs_["classifier"] == "tstr_real"  # C_r's space is measured unless left out
    built = build_settings(AuditImagesSettings, stage, "stages.audit")
    assert built.dp_epsilon == 4.0
    assert STAGE.side is Side.AUDITOR


class Pooled(torch.nn.Module):
    """Stands in for Inception, whose covariances take minutes: 3 x 3 means of the colors."""

    num_features = 9

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(image.double()[:, :1], 3).flatten(1)


def test_our_distance_is_the_fid_of_torchmetrics(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchmetrics.image import fid

    asked: list[dict[str, Any]] = []

    def small(**options: Any) -> Any:
        asked.append(options)
        return own(feature=Pooled())

    own = fid.FrechetInceptionDistance
    monkeypatch.setattr(fid, "FrechetInceptionDistance", small)
    train, others = real_sets()["train"], people(30, torch.Generator().manual_seed(8))
    records = gathered(tmp_path, inputs, made_set(others.image, torch.arange(30), train), max_train=50)
    splits = {split: Pooled()(images.image.repeat(1, 3, 1, 1)) for split, images in real_sets().items()}
    space = make_space("inception", records, splits, Pooled()(others.image), None)
    found = torchmetrics_fid(records, space, inputs["features"], batch_size=16)
    assert found["frechet/train_unshrunk"] == pytest.approx(found["frechet/train_torchmetrics"], rel=1e-6)
    assert asked == [
        {
            "feature": 2048,
            "feature_extractor_weights_path": inputs["features"].manifest["settings"]["weights"],
        }
    ]
