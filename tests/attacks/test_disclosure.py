"""Nearest-neighbor disclosure: copies, off-manifold points, the cut."""

from __future__ import annotations

import math

import pytest
import torch

from fedsynth.attacks import neighbor_disclosure
from fedsynth.evaluation import EvaluationError


def _points(n: int, seed: int, d: int = 8) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distances_medians_and_means_by_hand():
    result = neighbor_disclosure(
        synthetic=torch.tensor([[0.0], [3.0], [10.0]]),
        train=torch.tensor([[1.0], [2.0]]),
        held_out=torch.tensor([[4.0]]),
    )
    assert result.train_distance.tolist() == [1.0, 1.0, 8.0]
    assert result.held_out_distance.tolist() == [4.0, 1.0, 6.0]
    assert (result.median_train, result.median_held_out) == (1.0, 4.0)
    assert (result.mean_train, result.mean_held_out) == pytest.approx((10 / 3, 11 / 3))
    assert result.ratio == pytest.approx(10 / 11)
    # Train leave-one-out distances are all 1, and the cut is inclusive.
    assert (result.near_duplicate_cut, result.near_duplicate_fraction) == (1.0, pytest.approx(2 / 3))


def test_copies_of_training_records_are_all_near_duplicates():
    train = _points(200, 0)
    result = neighbor_disclosure(synthetic=train[:50].clone(), train=train, held_out=_points(200, 1))
    assert (result.mean_train, result.ratio, result.near_duplicate_fraction) == (0.0, 0.0, 1.0)


def test_fresh_samples_show_no_preference():
    result = neighbor_disclosure(synthetic=_points(500, 2), train=_points(400, 3), held_out=_points(400, 4))
    # Each mean has a relative standard error below 2 %.
    assert result.ratio == pytest.approx(1.0, abs=0.05)
    assert result.near_duplicate_fraction < 0.05


def test_off_manifold_points_have_ratio_one_whatever_they_copy():
    train = _points(300, 5)
    copies = train + 1e4
    result = neighbor_disclosure(synthetic=copies, train=train, held_out=_points(300, 6))
    assert result.ratio == pytest.approx(1.0, abs=1e-3)
    assert result.near_duplicate_fraction == 0.0


def test_ratio_of_two_zeros_is_undefined():
    points = _points(5, 7)
    assert math.isnan(neighbor_disclosure(synthetic=points, train=points, held_out=points).ratio)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": torch.zeros(1, 8)}, "train must hold at least 2"),
        ({"held_out": torch.zeros(3, 7)}, "synthetic and held_out must have the same"),
        ({"synthetic": torch.zeros(0, 8)}, "synthetic must hold at least 1"),
        ({"cut_quantile": 1.5}, "cut_quantile"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = {"synthetic": _points(4, 0), "train": _points(4, 1), "held_out": _points(4, 2)} | changes
    with pytest.raises(EvaluationError, match=message):
        neighbor_disclosure(**arguments)


@pytest.mark.parametrize("cut_quantile", [math.nan, "0.01", None])
def test_a_quantile_that_is_no_number_is_refused(cut_quantile):
    with pytest.raises(EvaluationError, match="cut_quantile"):
        neighbor_disclosure(
            synthetic=_points(4, 0), train=_points(4, 1), held_out=_points(4, 2), cut_quantile=cut_quantile
        )
