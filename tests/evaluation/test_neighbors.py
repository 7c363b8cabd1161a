"""Exact neighbors and ball memberships, against scikit-learn and direct differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from fedsynth.evaluation import EvaluationError, ball_membership, nearest_neighbors, neighbors


def _points(n: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _direct(query: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (query.double()[:, None] - reference.double()[None]).square().sum(-1).sqrt()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 64])
def test_distances_equal_scikit_learn_brute_force(dtype, dim):
    query, reference = _points(80, dim, 0, dtype), _points(300, dim, 1, dtype)
    found = nearest_neighbors(query, reference, num_neighbors=4)
    oracle = NearestNeighbors(n_neighbors=4, algorithm="brute").fit(reference.double().numpy())
    distance, _ = oracle.kneighbors(query.double().numpy())
    # scikit-learn's brute force uses the product form: about sqrt(1e-15) off for distances near zero.
    np.testing.assert_allclose(found.distance.numpy(), distance, atol=1e-7, rtol=1e-10)
    assert torch.equal(_direct(query, reference).gather(1, found.index), found.distance)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.sampled_from([0.0, 1e4, 1e8]),
    st.sampled_from([1.0, 1e-6]),
)
def test_distances_are_exact_for_duplicates_lattices_offsets_and_scales(seed, k, offset, scale):
    rng = torch.Generator().manual_seed(seed)
    # A small integer lattice: many duplicates and many exact ties.
    query = (torch.randint(0, 3, (12, 2), generator=rng).double() * scale + offset).float()
    reference = (torch.randint(0, 3, (20, 2), generator=rng).double() * scale + offset).float()
    expected = _direct(query, reference).sort(dim=1).values[:, :k]
    assert torch.equal(nearest_neighbors(query, reference, num_neighbors=k).distance, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_rows_are_at_distance_exactly_zero(dtype):
    points = (_points(500, 64, 2) * 37.7 + 1234.5).to(dtype)
    assert bool((nearest_neighbors(points, points.clone()).distance == 0).all())


def test_leave_one_out_skips_the_point_itself_but_not_its_duplicate():
    points = torch.tensor([[0.0], [1.0], [1.0], [5.0]])
    found = nearest_neighbors(points)
    assert found.distance[:, 0].tolist() == [1.0, 0.0, 0.0, 4.0]
    assert bool((found.index[:, 0] != torch.arange(4)).all())


def test_an_outlier_does_not_blur_the_others():
    reference = torch.cat([_points(200, 3, 3, torch.float32), torch.full((1, 3), 1e9)])
    query = _points(50, 3, 4, torch.float32)
    expected = _direct(query, reference).sort(dim=1).values[:, :3]
    assert torch.equal(nearest_neighbors(query, reference, num_neighbors=3).distance, expected)


def test_results_do_not_depend_on_the_chunk_size(monkeypatch):
    query, reference = _points(60, 8, 5, torch.float32), _points(90, 8, 6, torch.float32)
    radius = nearest_neighbors(reference, num_neighbors=3).distance[:, -1]
    whole, balls = nearest_neighbors(query, reference), ball_membership(query, reference, radius)
    monkeypatch.setattr(neighbors, "CHUNK_ELEMENTS", 7)
    assert torch.equal(nearest_neighbors(query, reference).distance, whole.distance)
    assert torch.equal(ball_membership(query, reference, radius).balls_per_query, balls.balls_per_query)


def test_low_matmul_precision_changes_nothing():
    query, reference = _points(40, 16, 7, torch.float32), _points(70, 16, 8, torch.float32)
    before = torch.get_float32_matmul_precision()
    expected = nearest_neighbors(query, reference).distance
    try:
        torch.set_float32_matmul_precision("medium")
        # Products may now be bfloat16, outside the error bound: the search must not use float32.
        assert neighbors._search_dtypes(query, reference) == (torch.float64,)
        assert torch.equal(nearest_neighbors(query, reference).distance, expected)
    finally:
        torch.set_float32_matmul_precision(before)


@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]))
def test_balls_are_closed_and_counted_exactly(seed, dtype):
    rng = torch.Generator().manual_seed(seed)
    query = torch.randint(0, 4, (15, 2), generator=rng).to(dtype)
    centers = torch.randint(0, 4, (11, 2), generator=rng).to(dtype)
    radius = torch.tensor([0.0, 1.0, 2.0, 2.0**0.5, 100.0], dtype=torch.float64)[
        torch.randint(0, 5, (11,), generator=rng)
    ]
    inside = _direct(query, centers) <= radius
    counted = ball_membership(query, centers, radius)
    assert torch.equal(counted.balls_per_query, inside.sum(1))
    assert torch.equal(counted.queries_per_ball, inside.sum(0))


def test_the_kth_neighbor_lies_inside_its_own_ball():
    points = _points(400, 32, 9, torch.float32)
    radius = nearest_neighbors(points, num_neighbors=5).distance[:, -1]
    # The point itself and its five neighbors, no tie among random reals.
    assert bool((ball_membership(points, points, radius).queries_per_ball == 6).all())


@pytest.mark.parametrize(
    ("query", "reference", "k", "message"),
    [
        (torch.zeros(3), None, 1, "shape"),
        (torch.zeros(3, 2, dtype=torch.int64), None, 1, "floating"),
        (torch.full((3, 2), torch.nan), None, 1, "NaN"),
        (torch.full((3, 2), 1e200, dtype=torch.float64), None, 1, "overflow"),
        (torch.zeros(3, 2), torch.zeros(3, 4), 1, "same number of features"),
        (torch.zeros(3, 2), None, 3, r"\[1, 2\]"),
        (torch.zeros(3, 2), torch.zeros(3, 2), 0, r"\[1, 3\]"),
        (torch.zeros(3, 0), None, 1, "features"),
        ([[0.0]], None, 1, "tensor or a numpy array"),
    ],
)
def test_bad_point_sets_are_refused_by_name(query, reference, k, message):
    with pytest.raises(EvaluationError, match=message):
        nearest_neighbors(query, reference, num_neighbors=k)


@pytest.mark.parametrize(
    "radius", [torch.ones(2), torch.tensor([1.0, -1.0, 1.0]), torch.full((3,), torch.nan)]
)
def test_bad_radii_are_refused(radius):
    with pytest.raises(EvaluationError, match="radius"):
        ball_membership(torch.zeros(2, 2), torch.zeros(3, 2), radius)
