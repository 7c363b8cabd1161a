from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy import Adjacency, PrivacyParameterError, shard_mean_sensitivity


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
