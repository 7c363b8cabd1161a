"""One form of labelled images for all stages: what is written is read, and what does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_stages import artifact

from fedsynth.errors import DataError
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.image_set_kinds import MULTILABEL

CLASSES = ("normal", "bacteria", "virus")


def images(num: int = 6) -> ImageSet:
    stream = torch.Generator().manual_seed(0)
    return ImageSet(
        image=torch.randint(0, 256, (num, 1, 4, 4), generator=stream, dtype=torch.uint8),
        label=torch.arange(num) % 3,
        classes=CLASSES,
        source=torch.arange(num),
        guidance=torch.linspace(0.4, 1.0, num),
    )


def multilabel() -> ImageSet:
    label = torch.tensor([[1, 0], [1, 1], [0, 0]], dtype=torch.uint8)
    return ImageSet(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), label, ("edema", "effusion"), MULTILABEL)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    for number, written in enumerate((images(), multilabel())):
        stored = artifact(
            tmp_path / str(number), {"images.safetensors": written.to_tensors()}, notes=written.describe()
        )
        read = read_image_set(stored)
        assert (read.classes, read.task) == (written.classes, written.task)
        for name in ("image", "label", "patient", "source", "guidance"):
            wanted, found = getattr(written, name), getattr(read, name)
            assert (wanted is None and found is None) or torch.equal(wanted, found)


def test_soft_labels_are_kept_and_are_what_is_trained_on(tmp_path: Path) -> None:
    soft = torch.rand(6, 3, generator=torch.Generator().manual_seed(1)).softmax(1)
    made = replace(images(), soft_label=soft)
    stored = artifact(tmp_path / "a", {"images.safetensors": made.to_tensors()}, notes=made.describe())
    read = read_image_set(stored)
    assert torch.equal(read.training_targets(), soft)
    assert torch.equal(read.rows(torch.tensor([4, 1])).training_targets(), soft[[4, 1]])
    assert torch.equal(read.targets(), images().targets())
    assert torch.equal(images().training_targets(), images().targets())
    replace(multilabel(), soft_label=torch.full((3, 2), 0.9))  # labels are independent: no sum is asked for


def test_rows_take_every_field_along() -> None:
    whole = images()
    order = torch.tensor([4, 1])
    part = whole.rows(order)
    assert torch.equal(part.image, whole.image[order])
    assert part.label.tolist() == [1, 1]
    assert part.source is not None
    assert part.source.tolist() == [4, 1]
    assert part.patient is None
    assert len(whole.rows(whole.label == 2)) == 2


def test_targets_of_both_tasks_sum_to_the_counts() -> None:
    assert images().targets().sum(1).tolist() == [1.0] * 6
    assert images(7).counts() == {"normal": 3, "bacteria": 2, "virus": 2}
    assert multilabel().counts() == {"edema": 2, "effusion": 1}
    assert multilabel().targets().tolist() == [[1, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": torch.zeros(6, 1, 4, 4)}, "uint8"),
        ({"image": torch.zeros(6, 4, 4, dtype=torch.uint8)}, "channels"),
        ({"label": torch.zeros(6, 3)}, r"shape \[6\]"),
        ({"label": torch.arange(5)}, r"shape \[6\]"),
        ({"task": "regression"}, "regression"),
        ({"task": MULTILABEL}, r"shape \[6, 3\]"),
        ({"source": torch.arange(5)}, "source must hold one number an image"),
        ({"soft_label": torch.ones(6) / 3}, r"shape \[6, 3\]"),
        ({"soft_label": torch.zeros(6, 3, dtype=torch.long)}, "floating point"),
        ({"soft_label": torch.tensor([1.5, -0.5, 0.0]).expand(6, 3)}, r"in \[0, 1\]"),
        ({"soft_label": torch.full((6, 3), float("nan"))}, r"in \[0, 1\]"),
        ({"soft_label": torch.full((6, 3), 0.5)}, "sum to 1"),
        ({"patient": torch.zeros(6, 1)}, "patient must hold one number an image"),
    ],
)
def test_a_field_that_does_not_fit_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        replace(images(), **change)


def test_a_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    made = images()
    stored = artifact(tmp_path / "a", {"images.safetensors": made.to_tensors()}, notes=made.describe())
    with pytest.raises(DataError, match="no test images, only train"):
        read_image_set(stored, "test")
