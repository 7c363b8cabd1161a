"""Guidance weights of the rounds, groups of labels, and stratified subsets."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.selection.groups import NO_LABEL, label_groups, stratified_rows
from fedsynth.selection.inputs import SelectionInputError
from fedsynth.selection.policy import guidance_schedule


def test_the_paper_lowers_the_weight_by_a_tenth_down_to_the_floor() -> None:
    assert guidance_schedule(1.2, step=0.1, floor=0.8) == (1.2, 1.1, 1.0, 0.9, 0.8)
    assert guidance_schedule(1.4, step=0.1, floor=1.05) == (1.4, 1.3, 1.2, 1.1)
    assert guidance_schedule(1.0, step=0.1, floor=1.0) == (1.0,)


def test_listed_weights_go_on_below_that_of_the_candidates() -> None:
    assert guidance_schedule(1.2, weights=[1.0, 0.7, 0.4]) == (1.2, 1.0, 0.7, 0.4)
    assert guidance_schedule(1.0, weights=[1.0, 0.7, 0.4]) == (1.0, 0.7, 0.4)
    assert guidance_schedule(1.0, weights=[]) == (1.0,)


@given(st.floats(0, 3), st.floats(0.01, 1), st.floats(0, 3))
def test_weights_fall_from_the_first_and_stay_above_the_floor(
    first: float, step: float, floor: float
) -> None:
    weights = guidance_schedule(first, step=step, floor=floor)
    assert weights[0] == first
    assert all(high > low for high, low in pairwise(weights))
    assert all(weight >= floor - 1e-8 for weight in weights[1:])
    assert weights[-1] - step < floor + 1e-8  # no further round would fit


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"weights": [1.0], "step": 0.1, "floor": 0.5}, {"step": 0.1}, {"step": 0.1, "floor": -1.0},
        {"weights": [0.5, 0.7]}, {"weights": [0.7, 0.7]}, {"weights": [-0.1]}, {"step": 0.0, "floor": 0.5},
    ],
)  # fmt: skip
def test_schedules_that_say_nothing_or_two_things_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SelectionInputError):
        guidance_schedule(1.2, **wrong)  # type: ignore[arg-type]


def test_policies_are_read_without_torch() -> None:
    program = "import sys, fedsynth.selection.policy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_groups_are_classes_in_their_order() -> None:
    label = torch.tensor([2, 0, 2, 1])
    group, names = label_groups(torch.nn.functional.one_hot(label, 4), ("a", "b", "c", "d"))
    assert names == ("a", "b", "c")  # nobody has d
    assert group.tolist() == label.tolist()


def test_each_combination_of_labels_is_a_group_of_its_own() -> None:
    targets = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    group, names = label_groups(targets, ("Edema", "Pneumonia"))
    assert [names[g] for g in group.tolist()] == [
        "Pneumonia", "Edema + Pneumonia", NO_LABEL, "Edema", "Edema + Pneumonia",
    ]  # fmt: skip


def test_labels_that_do_not_fit_the_classes_are_refused() -> None:
    with pytest.raises(SelectionInputError, match="3 classes"):
        label_groups(torch.ones(4, 2), ("a", "b", "c"))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_a_subset_has_every_group_in_proportion(labels: list[int], data: st.DataObject) -> None:
    group = torch.tensor(labels)
    number = data.draw(st.integers(1, len(labels)))
    rows = stratified_rows(group, number, torch.Generator().manual_seed(0))
    assert len(rows) == number == len(rows.unique())
    for g in group.unique().tolist():
        share = labels.count(g) * number / len(labels)
        assert abs(int((group[rows] == g).sum()) - share) < 1 + 1e-9


def test_subsets_larger_than_the_set_are_refused() -> None:
    with pytest.raises(SelectionInputError, match=r"1 … 3, got 4"):
        stratified_rows(torch.zeros(3, dtype=torch.long), 4, torch.Generator())
