"""Failure analysis: closed forms, defined degenerate cases, independent references."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr
from sklearn.neighbors import NearestNeighbors

from fedsynth.evaluation import EvaluationError
from fedsynth.evaluation.failure import (
    FrequentValue,
    borderline_negatives,
    centroid_margin,
    compare_scores,
    correlation,
    frequent_values,
    hard_negatives,
    logit_moments,
    neighbor_positive_share,
    score_range,
)

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def test_score_range_of_a_uniform_grid_is_four_fifths() -> None:
    assert score_range(torch.linspace(0, 1, 101)) == pytest.approx(0.8)
    assert score_range(torch.linspace(0, 1, 101)[torch.randperm(101)]) == pytest.approx(0.8)


@given(PROBABILITIES)
def test_score_range_is_numpys(score: list[float]) -> None:
    low, high = np.percentile(score, [10, 90])
    assert score_range(np.array(score)) == pytest.approx(high - low, abs=1e-12)


def test_one_outlier_in_a_hundred_does_not_enter_the_score_range() -> None:
    score = torch.full((100,), 0.9)
    score[0] = 0.0
    assert score_range(score) == 0.0


def test_scores_of_no_record_have_no_range_and_no_moments() -> None:
    nothing = torch.empty(0)
    assert math.isnan(score_range(nothing))
    assert all(math.isnan(value) for value in logit_moments(nothing))
    assert frequent_values(nothing) == []


def test_logit_moments_are_mean_and_sample_deviation() -> None:
    assert logit_moments(torch.tensor([1.0, 2.0, 6.0])) == pytest.approx((3.0, math.sqrt(7.0)))
    mean, std = logit_moments(torch.tensor([5.0]))
    assert mean == 5.0
    assert math.isnan(std)


def test_frequent_values_count_what_rounds_alike() -> None:
    score = torch.tensor([0.93281, 0.93279, 0.9329, 0.9329, 0.9328, 0.1, -0.00001, 0.00001])
    assert frequent_values(score.double(), num_values=3) == [
        FrequentValue(pytest.approx(0.9328), 3),
        FrequentValue(pytest.approx(0.9329), 2),
        FrequentValue(0.0, 2),
    ]


@given(PROBABILITIES, st.integers(1, 6))
def test_frequent_values_agree_with_numpy(score: list[float], decimals: int) -> None:
    found = frequent_values(np.array(score), num_decimals=decimals, num_values=100)
    values, counts = np.unique(np.round(score, decimals) + 0.0, return_counts=True)
    assert {value.num_records for value in found} == set(counts.tolist())
    assert sum(value.num_records for value in found) == len(score)
    assert sorted(value.value for value in found) == pytest.approx(values.tolist(), abs=1e-12)


def test_centroid_margin_on_the_axis_through_both_centroids() -> None:
    reference = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
    label = torch.tensor([0, 0, 1, 1])
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 7.0], [3.0, 0.0], [-10.0, 0.0]])
    margin = centroid_margin(points, reference=reference, label=label)
    assert margin.tolist() == pytest.approx([4.0, -4.0, 0.0, -2.0, 4.0])


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_swapping_the_classes_turns_the_margin_and_the_share_around(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    points, reference = torch.randn(5, 3, generator=draw), torch.randn(12, 3, generator=draw)
    label = torch.arange(12) % 2
    margin = centroid_margin(points, reference=reference, label=label)
    assert torch.allclose(centroid_margin(points, reference=reference, label=1 - label), -margin)
    share = neighbor_positive_share(points, reference=reference, label=label, num_neighbors=5)
    other = neighbor_positive_share(points, reference=reference, label=1 - label, num_neighbors=5)
    assert torch.allclose(share + other, torch.ones(5, dtype=torch.float64))


def test_positive_share_is_that_of_scikit_learns_neighbors() -> None:
    draw = torch.Generator().manual_seed(0)
    points, reference = torch.randn(40, 6, generator=draw), torch.randn(90, 6, generator=draw)
    label = (torch.rand(90, generator=draw) < 0.4).long()
    index = NearestNeighbors(n_neighbors=25).fit(reference.numpy()).kneighbors(points.numpy())[1]
    share = neighbor_positive_share(points, reference=reference, label=label)
    assert share.numpy() == pytest.approx(label.numpy()[index].mean(axis=1))


def test_share_of_all_neighbors_is_the_class_share() -> None:
    reference, label = torch.randn(8, 2), torch.tensor([1, 1, 1, 0, 0, 0, 0, 0])
    share = neighbor_positive_share(torch.randn(3, 2), reference=reference, label=label, num_neighbors=8)
    assert share.tolist() == [3 / 8] * 3


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=30))
def test_correlation_is_scipys_where_it_is_defined(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    found = correlation(one, other)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(pearsonr(one, other).statistic, abs=1e-9)


@pytest.mark.parametrize("value", [0.1, 0.0, 0.9328])
def test_correlation_with_collapsed_scores_is_undefined(value: float) -> None:
    # 0.1 is no binary number: the mean of copies of it differs from it in the last bit.
    assert math.isnan(correlation(torch.full((7,), value, dtype=torch.float64), torch.arange(7.0)))
    assert math.isnan(correlation(torch.tensor([1.0]), torch.tensor([2.0])))


def test_hard_negatives_are_those_the_synthetic_classifier_raises_most() -> None:
    target = torch.tensor([0, 1, 0, 0, 0])
    synthetic = torch.tensor([0.5, 1.0, 0.9, 0.9, 0.2])
    real = torch.tensor([0.4, 0.0, 0.1, 0.8, 0.2])
    assert hard_negatives(synthetic, real, target, fraction=0.5).tolist() == [2, 0]
    assert hard_negatives(synthetic, real, target, fraction=1.0).tolist() == [2, 0, 3, 4]


@pytest.mark.parametrize(("num_negatives", "count"), [(234, 29), (8, 1), (3, 1), (1, 1), (0, 0)])
def test_an_eighth_of_the_negatives_is_rounded_down_to_at_least_one(num_negatives: int, count: int) -> None:
    target = torch.cat([torch.zeros(num_negatives), torch.ones(5)])
    assert len(hard_negatives(torch.rand(len(target)), torch.rand(len(target)), target)) == count


def test_equal_gaps_go_to_the_lower_row() -> None:
    half = torch.full((16,), 0.5)
    assert hard_negatives(half, half, torch.zeros(16)).tolist() == [0, 1]


def test_borderline_negatives_lie_strictly_between_the_bounds() -> None:
    share = torch.tensor([0.2, 0.24, 0.5, 0.8, 0.76, 0.5], dtype=torch.float64)
    target = torch.tensor([0, 0, 0, 0, 0, 1])
    assert borderline_negatives(share, target).tolist() == [1, 2, 4]
    assert borderline_negatives(share, torch.ones(6)).tolist() == []


def test_comparison_is_of_the_chosen_records_only() -> None:
    p, q = torch.tensor([0.9, 0.5, 0.0]), torch.tensor([0.1, 0.3, 1.0])
    assert compare_scores(p, q, torch.tensor([0, 1])) == pytest.approx((2, 0.7, 0.2, 0.5))
    nothing = compare_scores(p, q, torch.empty(0, dtype=torch.int64))
    assert nothing.num_records == 0
    assert all(math.isnan(value) for value in nothing[1:])


GOOD = {"reference": torch.randn(6, 2), "label": torch.tensor([0, 1] * 3)}
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: score_range(torch.zeros(2, 2)), "score must be a vector"),
    (lambda: score_range([0.1, 0.2]), "torch tensor or a numpy array"),  # type: ignore[arg-type]
    (lambda: logit_moments(torch.tensor([math.inf])), "1 NaN or infinite"),
    (lambda: frequent_values(torch.rand(3), num_decimals=0), "num_decimals must be"),
    (lambda: frequent_values(torch.rand(3), num_values=0), "num_values must be"),
    (lambda: centroid_margin(torch.randn(3, 3), **GOOD), "same number of features"),
    (
        lambda: centroid_margin(torch.randn(3, 2), reference=torch.randn(4, 2), label=torch.ones(4)),
        "reference must hold both classes, got 4 positives among 4",
    ),
    (
        lambda: centroid_margin(torch.randn(3, 2), reference=torch.randn(4, 2), label=torch.ones(3)),
        "reference and label must hold the same records, got 4 and 3",
    ),
    (lambda: neighbor_positive_share(torch.randn(3, 2), **GOOD, num_neighbors=7), r"must be in \[1, 6\]"),
    (lambda: neighbor_positive_share(torch.full((3, 2), math.nan), **GOOD), "6 NaN or infinite"),
    (lambda: correlation(torch.rand(3), torch.rand(4)), "same records, got 3 and 4"),
    (lambda: hard_negatives(torch.rand(2), torch.rand(2), torch.zeros(2), fraction=0.0), "fraction must be"),
    (lambda: hard_negatives(torch.rand(2) + 2, torch.rand(2), torch.zeros(2)), r"synthetic must lie in \[0, 1\]"),
    (lambda: hard_negatives(torch.rand(2), torch.rand(3), torch.zeros(2)), "real and target must have the same"),
    (lambda: borderline_negatives(torch.rand(2), torch.zeros(2), low=0.8, high=0.2), "low < high"),
    (lambda: borderline_negatives(torch.rand(2), torch.tensor([0, 2])), "only 0 and 1"),
    (lambda: compare_scores(torch.rand(2), torch.rand(2), torch.tensor([2])), r"rows must lie in \[0, 1\]"),
    (lambda: compare_scores(torch.rand(2), torch.rand(3), torch.tensor([0])), "same records, got 2 and 3"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        call()
