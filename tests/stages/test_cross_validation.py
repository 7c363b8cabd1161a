"""Cross-validation: folds shared by methods, every image left out once, resuming, ranks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats
from tiny_densenet import SPLITS, images, made, real_sets, stored, supplier, tiny_settings
from tiny_stages import run_stage, stage_context, values

from fedsynth.errors import ConfigError, DataError
from fedsynth.evaluation import critical_difference
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import find_stage
from fedsynth.stages.cross_validation import run as module
from fedsynth.stages.cross_validation.folds import folds_of, origins
from fedsynth.stages.cross_validation.ranks import rank_summary
from fedsynth.stages.image_set import ImageSet

STAGE = find_stage("cross_validation", "cross_validation")
REAL = images(SPLITS["train"])


def folds(one: ImageSet, *, unit: str = "image", num_folds: int = 5, seed: int = 1) -> torch.Tensor:
    return folds_of(origins(one), REAL, num_folds=num_folds, unit=unit, seed=seed, path="stages.cv")


def test_folds_are_equal_in_size_and_a_function_of_the_seed() -> None:
    dealt = folds(REAL)
    assert torch.bincount(dealt).tolist() == [8, 7, 7, 7, 7]
    assert torch.equal(dealt, folds(REAL))
    assert not torch.equal(dealt, folds(REAL, seed=2))


def test_a_made_image_is_in_the_fold_of_its_source() -> None:
    synthetic = made(REAL)
    assert synthetic.source is not None
    for unit in ("image", "patient"):
        assert torch.equal(folds(synthetic, unit=unit), folds(REAL, unit=unit)[synthetic.source])


def test_images_of_a_patient_share_a_fold_only_where_asked() -> None:
    def split(unit: str) -> int:
        dealt = folds(REAL, unit=unit)
        assert REAL.patient is not None
        return sum(len(dealt[REAL.patient == patient].unique()) > 1 for patient in REAL.patient.unique())

    assert split("patient") == 0
    assert split("image") > 0  # as in the paper


def test_folds_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_folds must be at most the 36 images"):
        folds(REAL, num_folds=37)
    with pytest.raises(ConfigError, match="num_folds must be at most the 18 patients"):
        folds(REAL, num_folds=19, unit="patient")
    far = dataclasses.replace(made(REAL), source=torch.arange(36) + 1)
    for unit in ("image", "patient"):
        with pytest.raises(DataError, match=r"made of row 36, but the real training images are 36"):
            folds(far, unit=unit)
    nameless = dataclasses.replace(REAL, patient=None)
    with pytest.raises(ConfigError, match="needs real images with patients"):
        folds_of(origins(REAL), nameless, num_folds=2, unit="patient", seed=0, path="stages.cv")


def test_two_methods_have_a_wilcoxon_test_and_more_the_critical_difference() -> None:
    scores = {"a": [0.9, 0.8, 0.85, 0.7], "b": [0.8, 0.85, 0.6, 0.5], "c": [0.5, 0.4, 0.45, 0.45]}
    found = rank_summary(scores, 0.05)
    wanted = critical_difference(scores)
    assert found["mean_ranks"] == wanted.mean_rank
    assert found["friedman"] == vars(wanted.friedman)
    assert found["cliques"] == [list(clique) for clique in wanted.cliques]
    assert json.loads(json.dumps(found)) == found
    pair = rank_summary({name: scores[name] for name in ("b", "a")}, 0.05)
    p = stats.wilcoxon(scores["a"], scores["b"], zero_method="pratt").pvalue
    assert pair["mean_ranks"] == {"a": 1.25, "b": 1.75}
    assert pair["pairs"][0]["p_value"] == pytest.approx(float(p))
    assert (pair["pairs"][0]["better"], pair["friedman"], pair["can_distinguish"]) == ("a", None, False)
    assert pair["cliques"] == [["a", "b"]]


class Methods:
    """Three training sets of one real one: itself, images made of it, and noise with its labels."""

    def __init__(self, folder: Path) -> None:
        sets = real_sets()
        train = sets["train"]
        noise = torch.randint(256, train.image.shape, generator=torch.Generator().manual_seed(0)).to(
            torch.uint8
        )
        meaningless = dataclasses.replace(made(train), image=noise)
        self.folder = folder
        self.inputs: dict[str, Artifact] = {
            "images": stored(folder / "images", sets),
            "first": stored(folder / "real", sets),
            "second": stored(folder / "made", {"train": made(train)}, stage_settings={"arm": "ours"}),
            "third": stored(folder / "noise", {"train": meaningless}),
        }

    def run(self, name: str = "cv", **changes: Any) -> Artifact:
        settings = tiny_settings("cross_validation", **changes)
        return run_stage("cross_validation", settings, self.inputs, stage_context(self.folder / name, 2))


@pytest.fixture
def methods(tmp_path: Path) -> Methods:
    return Methods(tmp_path)


def test_methods_are_ranked_by_their_scores_on_real_images(methods: Methods) -> None:
    result = methods.run()
    written = json.loads(result.file("folds.json").read_text())
    scores, reported, notes = written["scores"], values(result), result.manifest["notes"]
    assert {arm: len(row) for arm, row in scores.items()} == {"real": 3, "ours": 3, "noise": 3}
    assert list(notes["mean_ranks"])[-1] == "noise"
    assert min(scores["ours"] + scores["real"]) > 0.8 > max(scores["noise"])
    for arm, row in scores.items():
        assert reported[arm, "cv/auroc", 42] == pytest.approx(sum(row) / 3)
        assert reported[arm, "cv/mean_rank", 42] == notes["mean_ranks"][arm]
    assert written["ranks"] == rank_summary(scores, 0.05)
    assert notes["can_distinguish"] is False  # three folds cannot, whatever the scores are
    assert notes["stages"] == {"real": "real", "ours": "made", "noise": "noise"}


def test_each_fold_trains_on_all_other_images_with_one_seed_for_all_methods(
    methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted, seen = module.fit_classifier, []

    def spied(settings: Any, train: ImageSet, val: ImageSet, **options: Any) -> Any:
        seen.append((options["name"], options["seed"], origins(train) if train.source is not None else train))
        assert torch.equal(val.image, real_sets()["val"].image)
        return fitted(settings, train, val, **options)

    monkeypatch.setattr(module, "fit_classifier", spied)
    methods.run()
    seeds = {name: seed for name, seed, _ in seen}
    assert len(seeds) == 9
    for fold in range(3):
        assert len({seeds[f"{role}-{fold}"] for role in ("first", "second", "third")}) == 1
    assert len({seeds[f"first-{fold}"] for fold in range(3)}) == 3
    kept = [rows for name, _, rows in seen if name.startswith("second")]
    times = torch.bincount(torch.cat(kept), minlength=36)
    assert (times == 2).all()  # every source is left out of exactly one of three folds
    for one, other in zip(kept, [rows for name, _, rows in seen if name.startswith("third")], strict=True):
        assert set(one.tolist()) == set(other.tolist())  # paired


def test_finished_folds_are_not_trained_again(methods: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = methods.run("whole").file("folds.json").read_text()
    fitted, names = module.fit_classifier, []

    def killed(*arguments: Any, **options: Any) -> Any:
        names.append(options["name"])
        if len(names) == 5:
            raise KeyboardInterrupt
        return fitted(*arguments, **options)

    monkeypatch.setattr(module, "fit_classifier", killed)
    with pytest.raises(KeyboardInterrupt):
        methods.run("cut")
    again = methods.run("cut")
    assert names[5:] == ["second-1", "second-2", "third-0", "third-1", "third-2"]
    assert again.file("folds.json").read_text() == whole
    assert not list((methods.folder / "cut" / "checkpoints").glob("*.ckpt"))


def test_sets_that_do_not_fit_are_refused_before_training(
    methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "fit_classifier", lambda *a, **o: pytest.fail("trained"))
    other = dataclasses.replace(made(REAL), classes=("a", "b", "c"))
    methods.inputs["third"] = stored(methods.folder / "other", {"train": other})
    with pytest.raises(DataError, match=r"stages\.other holds images with the classes"):
        methods.run("a")
    few = made(REAL).rows(torch.tensor([0, 1, 2, 3]))
    few = dataclasses.replace(few, label=torch.tensor([0, 0, 0, 1]))
    methods.inputs["third"] = stored(methods.folder / "few", {"train": few})
    with pytest.raises(DataError, match=r"stages\.few outside fold \d+ holds images of one class only"):
        methods.run("b", num_folds=4)


def planned(kind: str, name: str, arm: str | None = None, **inputs: str) -> Any:
    """A planned stage of a kind, as far as ``check_suppliers`` looks."""
    one = supplier(name, arm, **inputs)
    one.stage = SimpleNamespace(kind=kind)
    return one


IMAGES = planned("xray_images", "images", dataset="")
OURS = planned("select_images", "select", "ours", images="images")


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_methods_are_made_of_the_real_images_and_say_of_which(unit: str) -> None:
    settings = tiny_settings("cross_validation", unit=unit)
    for kind in ("vae_reconstruction", "source_images", "select_images"):
        suppliers = {"images": IMAGES, "first": IMAGES, "second": planned(kind, "made", images="images")}
        STAGE.check_suppliers(settings, suppliers, "stages.cv")
    for bad, message in (
        (
            planned("data_sharing", "shared", first="select"),
            r"images or a set made of it.*got shared, a union",
        ),
        (planned("select_images", "theirs", images="images_b"), r"got theirs, which is made of images_b"),
        (planned("xray_images", "images_b"), r"got images_b, which is made of its own images"),
    ):
        suppliers = {"images": IMAGES, "first": IMAGES, "second": OURS, "third": bad}
        with pytest.raises(ConfigError, match=message) as caught:
            STAGE.check_suppliers(settings, suppliers, "stages.cv")
        assert caught.value.key == "stages.cv.inputs.third"
        assert f"unit={unit}" in str(caught.value)


def test_names_are_checked_before_anything_runs() -> None:
    suppliers = {
        "images": IMAGES, "first": IMAGES, "second": OURS,
        "third": planned("select_images", "select_b", "ours", images="images"),
    }  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"third must name a set .* got select_b, whose arm 'ours' is also that"
    ):
        STAGE.check_suppliers(tiny_settings("cross_validation"), suppliers, "stages.cv")
    STAGE.check_suppliers(tiny_settings("cross_validation", arms=["a", "b", "c"]), suppliers, "stages.cv")
    for arms in (["a", "b"], ["a", "b", "b"]):
        with pytest.raises(ConfigError, match=r"arms must name the 3 methods, each differently") as caught:
            STAGE.check_suppliers(tiny_settings("cross_validation", arms=arms), suppliers, "stages.cv")
        assert caught.value.key == "stages.cv.arms"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_folds": 1}, "num_folds"),
        ({"unit": "site"}, "unit"),
        ({"alpha": 1.0}, "alpha"),
        ({"network": "x"}, "network"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_settings("cross_validation", **changes)
    assert caught.value.key == f"stages.tiny.{key}"
