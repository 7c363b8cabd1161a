"""The union of released sets: nothing lost, nothing mixed up, nothing joined that does not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tiny_densenet import CLASSES, images, made, stored, supplier, tiny_settings
from tiny_stages import run_stage, stage_context

from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Sensitivity, Side, find_stage
from fedsynth.stages.image_set import ImageSet, read_image_set

STAGE = find_stage("data_sharing", "data_sharing")


def share(folder: Path, *sets: Artifact) -> Artifact:
    roles = ("first", "second", "third")
    return run_stage(
        "data_sharing",
        tiny_settings("data_sharing"),
        dict(zip(roles, sets, strict=False)),
        stage_context(folder / "share"),
    )


def sites() -> list[ImageSet]:
    return [made(images(num, seed=num), seed=num) for num in (10, 16, 12)]


def test_the_union_holds_every_image_once_with_its_site(tmp_path: Path) -> None:
    given = sites()
    parts = [stored(tmp_path / f"s{k}", {"train": one}, site=f"site {k}") for k, one in enumerate(given)]
    result = share(tmp_path, *parts)
    tensors = result.load("images.safetensors")
    union, site = read_image_set(result), tensors["train.site"]
    # Where a set tells its sources, they are no business of the server that joins them.
    assert set(tensors) == {"train.image", "train.label", "train.site"}
    assert len(union) == 38
    assert union.patient is None
    notes = result.manifest["notes"]
    for number, one in enumerate(given):
        rows = union.rows(site == number)
        for name in ("image", "label"):
            assert torch.equal(getattr(rows, name), getattr(one, name))
        assert notes["site"][number]["site"] == f"site {number}"
        assert notes["site"][number]["stage"] == f"s{number}"
        assert notes["site"][number]["counts"] == one.counts()
    totals = [sum(one.counts()[name] for one in given) for name in CLASSES]
    assert list(notes["counts"].values()) == totals


def test_soft_labels_of_some_sites_stand_beside_hard_ones_of_others(tmp_path: Path) -> None:
    first, second, third = sites()
    soft = torch.rand(len(second), 3, generator=torch.Generator().manual_seed(4)).softmax(1)
    second = dataclasses.replace(second, soft_label=soft)
    parts = [stored(tmp_path / f"s{k}", {"train": one}) for k, one in enumerate((first, second, third))]
    union = read_image_set(share(tmp_path, *parts))
    assert torch.equal(union.training_targets(), torch.cat([first.targets(), soft, third.targets()]))
    assert torch.equal(union.label, torch.cat([first.label, second.label, third.label]))


def test_sets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    first, second, _ = sites()
    good = stored(tmp_path / "good", {"train": first})
    labels = images(8, task="multilabel")
    cases = [
        (
            dataclasses.replace(second, classes=("normal", "virus", "bacteria")),
            r"its classes is \('normal', 'virus'",
        ),
        (labels, "its task is multilabel, not multiclass"),
        (dataclasses.replace(second, image=second.image[..., :12]), r"its image shape is \[1, 16, 12\]"),
        (second.rows(torch.tensor([], dtype=torch.int64)), "holds no images to share"),
    ]
    for number, (bad, message) in enumerate(cases):
        with pytest.raises(DataError, match=rf"stages\.bad{number} .*{message}"):
            share(tmp_path / str(number), good, stored(tmp_path / f"bad{number}", {"train": bad}))


def test_a_site_given_twice_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="must name a set of its own, got select_a, which is also first"):
        STAGE.check_suppliers(
            tiny_settings("data_sharing"),
            {"first": supplier("select_a"), "second": supplier("select_a")},
            "stages.share",
        )


def test_the_server_joins_only_what_was_released() -> None:
    """A server stage that takes select_images alone, and whose result is as public as its inputs."""
    assert STAGE.side is Side.SERVER
    assert all(kinds == ("select_images",) for kinds in STAGE.accepts.values())
    assert STAGE.yields(None, {"first": Sensitivity.RELEASED}) is Sensitivity.RELEASED
    assert STAGE.yields(None, {"first": Sensitivity.PRIVATE}) is Sensitivity.PRIVATE
