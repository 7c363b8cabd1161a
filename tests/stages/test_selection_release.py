"""What a server sees of a selection: images, labels, counts, and not where they come from."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_candidates import (
    selection_settings,
    tiny_images,
)
from tiny_selection import selected, selection_inputs
from tiny_stages import run_stage, stage_context

from fedsynth.errors import PrivateInputError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.public_part import public_part
from fedsynth.pipeline.stage import Sensitivity
from fedsynth.stages.image_set import read_image_set
from fedsynth.stages.select_images.released import release_order
from fedsynth.stages.select_images.spec import STAGE


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return selection_inputs(tmp_path_factory.mktemp("inputs"))


def server_view(folder: Path, artifact: Artifact) -> Artifact:
    """What the pipeline hands to a server-side stage."""
    return public_part(artifact, folder / "server")


def test_a_server_sees_images_labels_and_counts_and_nothing_else(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    every = {"when_all_flagged": "class_balanced", "num_shown": 4, "guidance_weights": [1.0, 0.5, 0.0]}
    whole = selected(tmp_path / "a", inputs, **every)
    seen = server_view(tmp_path, whole)
    files = [path for path in seen.path.rglob("*") if path.is_file() and path.suffix == ".safetensors"]
    assert [path.name for path in files] == ["images.safetensors"]
    tensors = load_file(files[0])
    assert set(tensors) == {"train.image", "train.label"}
    shown = {row.numpy().tobytes() for row in tensors["train.image"].flatten(1)}
    # No pixel row of a training image, and no candidate that the filter refused.
    assert not shown & {row.numpy().tobytes() for row in tiny_images()["train"].image.flatten(1)}
    verdicts = whole.load("verdicts.safetensors")
    refused = verdicts["image"][verdicts["flagged"].bool()].flatten(1)
    assert len(refused)
    assert not shown & {row.numpy().tobytes() for row in refused}
    assert seen.manifest["metrics"] == []
    assert set(seen.manifest["notes"]) == {
        "classes", "task", "image_shape", "arm", "counts", "missing_classes", "num_candidates", "weights_allowed",
        "policy",
    }  # fmt: skip
    with pytest.raises(PrivateInputError, match="stays with the clients"):
        seen.file("private/verdicts.safetensors")


def test_soft_labels_leave_only_where_they_are_asked_for(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    seen = server_view(tmp_path, selected(tmp_path / "a", inputs, labels="soft", release=True))
    assert set(seen.load("images.safetensors")) == {"train.image", "train.label", "train.soft_label"}
    (said,) = [text for text in STAGE.uncovered(selection_settings(labels="soft")) if "soft labels" in text]
    assert "no formal guarantee" in said
    assert not any("soft labels" in text for text in STAGE.uncovered(selection_settings()))
    refilled = STAGE.uncovered(selection_settings(when_all_flagged="class_balanced", max_per_source=2))
    several = STAGE.uncovered(selection_settings(images_per_source=2))
    assert several == refilled
    assert set(several) - set(STAGE.uncovered(selection_settings())) == {
        "what several images of one training image tell together: the filter and audits judge each alone"
    }


def test_the_server_that_joins_sites_learns_no_source(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    whole = selected(tmp_path / "a", inputs)
    sites = {"first": server_view(tmp_path / "one", whole), "second": server_view(tmp_path / "two", whole)}
    joined = run_stage("data_sharing", None, sites, stage_context(tmp_path / "shared"))
    assert set(joined.load("images.safetensors")) == {"train.image", "train.label", "train.site"}
    assert read_image_set(joined).counts() == {
        name: 2 * n for name, n in read_image_set(whole).counts().items()
    }


def test_the_order_of_the_released_says_nothing_of_the_rows(tmp_path: Path) -> None:
    images = tiny_images()["train"]
    order = release_order(images, 500, 42)
    assert sorted(order.tolist()) == list(range(500))
    assert torch.equal(order, release_order(images, 500, 42))
    # 500 images in random order have a rank correlation of 0 ± 0.045 with that of their sources.
    assert abs(float(torch.corrcoef(torch.stack([order.double(), torch.arange(500.0).double()]))[0, 1])) < 0.2
    other = dataclasses.replace(images, image=images.image.flip(3))
    assert not torch.equal(order, release_order(other, 500, 42))


def test_what_leaves_has_no_price_but_infinity_and_says_so() -> None:
    released, kept = selection_settings(), selection_settings(release=False)
    assert STAGE.yields(released, {"images": Sensitivity.PRIVATE}) is Sensitivity.RELEASED
    assert STAGE.price(released) == (math.inf, 0.0)
    assert "neither necessary nor sufficient" in " ".join(STAGE.uncovered(released))
    assert STAGE.yields(kept, {"images": Sensitivity.PRIVATE}) is Sensitivity.PRIVATE
    assert STAGE.price(kept) is None
    said = " ".join(STAGE.uncovered(released))
    assert "images of each class" in said
    assert "pools private images between clients" in said
    assert "no identity filter" in " ".join(STAGE.uncovered(selection_settings(filter="none")))
