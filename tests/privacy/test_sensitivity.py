from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy import (
    Adjacency,
    PrivacyParameterError,
    count_sensitivity,
    counted_sum_sensitivity,
    second_moment_sensitivity,
    shard_mean_sensitivity,
    weakest_common,
)


def in_ball(rng, radius, shape):
    """Vectors of norm at most the radius, half of them on the sphere."""
    points = rng.normal(size=shape)
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return points * radius * np.where(rng.random((*shape[:-1], 1)) < 0.5, 1.0, rng.random((*shape[:-1], 1)))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.floats(0.1, 50), st.integers(0, 2**32 - 1))
def test_no_replacement_moves_second_moments_or_counted_sums_by_more(dim, radius, seed):
    rng = np.random.default_rng(seed)
    old, new = in_ball(rng, radius, (50, dim)), in_ball(rng, radius, (50, dim))
    zero = np.zeros(dim + 1)
    for before, after in zip(old, new, strict=True):
        outer = [np.outer(vector, vector) for vector in (before, after)]
        counted = [np.append(radius, vector) for vector in (before, after)]
        # Replaced within a cell, and moved to another cell (the two changes lie in different coordinates).
        assert np.linalg.norm(outer[0] - outer[1]) <= second_moment_sensitivity(radius) * (1 + 1e-12)
        assert np.hypot(*map(np.linalg.norm, outer)) <= second_moment_sensitivity(radius) * (1 + 1e-12)
        assert np.linalg.norm(counted[0] - counted[1]) <= counted_sum_sensitivity(radius) * (1 + 1e-12)
        moved = np.concatenate([counted[0] - zero, zero - counted[1]])
        assert np.linalg.norm(moved) <= counted_sum_sensitivity(radius) * (1 + 1e-12)


def test_the_bounds_are_attained():
    radius, first, second = 3.0, np.array([3.0, 0.0]), np.array([0.0, 3.0])
    moved = np.outer(first, first) - np.outer(second, second)
    assert np.linalg.norm(moved) == pytest.approx(second_moment_sensitivity(radius), rel=1e-14)
    assert np.linalg.norm(first - -first) == pytest.approx(counted_sum_sensitivity(radius), rel=1e-14)
    assert np.linalg.norm([*np.append(radius, first), *-np.append(radius, second)]) == pytest.approx(
        counted_sum_sensitivity(radius), rel=1e-14
    )
    assert np.linalg.norm(np.array([1, 0]) - np.array([0, 1])) == pytest.approx(
        count_sensitivity(), rel=1e-14
    )


@pytest.mark.parametrize("bound", [second_moment_sensitivity, counted_sum_sensitivity])
@pytest.mark.parametrize("radius", [0.0, -1.0, np.inf, np.nan])
def test_an_unbounded_vector_has_no_sensitivity(bound, radius):
    with pytest.raises(PrivacyParameterError):
        bound(radius)


def test_any_label_implies_label_preserving_and_nothing_else_mixes():
    one, any_label, add = (
        Adjacency.REPLACE_ONE,
        Adjacency.REPLACE_ONE_ANY_LABEL,
        Adjacency.ADD_OR_REMOVE_ONE,
    )
    assert weakest_common([one, any_label]) is one
    assert weakest_common([any_label]) is any_label
    assert weakest_common([any_label, add]) is None
    assert weakest_common([]) is None


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), st.floats(0.1, 50), st.integers(0, 2**32 - 1))
def test_no_replacement_moves_a_clipped_mean_by_more_than_the_sensitivity(size, dim, radius, seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(size, dim)) * rng.uniform(0, 3 * radius, size=(size, 1))
    candidates = rng.normal(size=(30, dim)) * rng.uniform(0, 3 * radius, size=(30, 1))

    def clip(x):
        return x * np.minimum(1, radius / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12))

    mean, largest = clip(points).mean(axis=0), 0.0
    for record in range(size):  # brute force: every record exchanged for every candidate
        for candidate in candidates:
            neighbor = points.copy()
            neighbor[record] = candidate
            largest = max(largest, np.linalg.norm(clip(neighbor).mean(axis=0) - mean))
    assert largest <= shard_mean_sensitivity(radius, size) * (1 + 1e-12)


def test_antipodal_points_attain_the_sensitivity():
    radius, size = 3.0, 7
    points = np.zeros((size, 4))
    points[0, 0] = radius
    neighbor = points.copy()
    neighbor[0] = -points[0]
    moved = np.linalg.norm(points.mean(axis=0) - neighbor.mean(axis=0))
    assert moved == pytest.approx(shard_mean_sensitivity(radius, size), rel=1e-14)


@pytest.mark.parametrize(
    ("radius", "size", "name"),
    [
        (0.0, 5, "clip_radius"),
        (float("inf"), 5, "clip_radius"),
        (1.0, 0, "shard_size"),
        (1.0, 2.5, "shard_size"),
    ],
)
def test_sensitivity_refuses_unbounded_norms_and_empty_shards(radius, size, name):
    with pytest.raises(PrivacyParameterError, match=name):
        shard_mean_sensitivity(radius, size)


def test_adjacency_is_read_back_from_its_text():
    assert Adjacency("replace_one") is Adjacency.REPLACE_ONE
    with pytest.raises(ValueError, match="substitute"):
        Adjacency("substitute")
