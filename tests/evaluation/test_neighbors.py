"""Exact neighbors and ball memberships, against scikit-learn and direct differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from fedsynth.evaluation import (
    EvaluationError,
    ball_membership,
    candidates,
    mutual_ball_membership,
    nearest_neighbors,
    pairwise,
)


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
    monkeypatch.setattr(pairwise, "CHUNK_ELEMENTS", 7)
    assert torch.equal(nearest_neighbors(query, reference).distance, whole.distance)
    assert torch.equal(ball_membership(query, reference, radius).balls_per_query, balls.balls_per_query)


def test_low_matmul_precision_changes_nothing():
    query, reference = _points(40, 16, 7, torch.float32), _points(70, 16, 8, torch.float32)
    before = torch.get_float32_matmul_precision()
    expected = nearest_neighbors(query, reference).distance
    try:
        torch.set_float32_matmul_precision("medium")
        # Products may now be bfloat16, outside the error bound: the search must not use float32.
        assert pairwise.search_dtypes(query.device) == (torch.float64,)
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
        (torch.zeros(3, 2), torch.zeros(3, 2), 0, "num_neighbors must be an integer >= 1"),
        (torch.zeros(3, 2), torch.zeros(3, 2), 4, r"\[1, 3\]"),
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


def _expected(query: torch.Tensor, reference: torch.Tensor | None, k: int) -> torch.Tensor:
    distance = _direct(query, query if reference is None else reference)
    if reference is None:
        distance.fill_diagonal_(torch.inf)
    return distance.sort(dim=1).values[:, :k]


def _hard_sets() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(20)
    normal = torch.randn(300, 16, generator=rng, dtype=torch.float64)
    direction = torch.randn(1, 16, generator=rng, dtype=torch.float64)
    return {
        "offset": (normal + 1e4).float(),
        "offset in float64": normal * 1e-3 + 1e4,
        "two far clusters": torch.cat([normal[:150] * 1e-5, normal[150:] * 1e-5 + 1e3]),
        "nearly a line": normal[:, :1] @ direction * 100 + 1e-4 * normal,
        "duplicates": normal[:30].repeat(10, 1).float(),
        "a lattice": torch.randint(0, 2, (300, 16), generator=rng).float(),
        "one-hot rows": torch.eye(16).repeat(19, 1)[:300],
        "a sphere": torch.nn.functional.normalize(normal, dim=1),
        "constant": torch.full((300, 16), 3.7),
        "one outlier": torch.cat([normal[:299], torch.full((1, 16), 1e12, dtype=torch.float64)]),
        "tiny": normal * 1e-30,
        "huge": normal * 1e90,
        "half precision": normal.half(),
        "bfloat16": normal.bfloat16(),
    }


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", _hard_sets())
def test_distances_equal_direct_float64_ones_on_hard_sets(name, k):
    points = _hard_sets()[name]
    for reference in (None, points[::2]):
        found = nearest_neighbors(points, reference, num_neighbors=k)
        assert torch.equal(found.distance, _expected(points, reference, k))
        where = points if reference is None else reference
        assert torch.equal(_direct(points, where).gather(1, found.index), found.distance)
        assert all(len(set(row)) == k for row in found.index.tolist())


def test_ties_are_listed_by_row_number():
    found = nearest_neighbors(torch.zeros(1, 1), torch.tensor([[2.0], [-1.0], [1.0], [3.0]]), num_neighbors=3)
    assert found.index.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("name", ["offset", "duplicates", "a lattice", "two far clusters", "one outlier"])
def test_products_used_twice_give_the_same_neighbors(monkeypatch, name, tile):
    points = _hard_sets()[name][:290]  # no multiple of a group
    whole = nearest_neighbors(points, num_neighbors=5)
    monkeypatch.setattr(candidates, "_WIDTH", 128)
    monkeypatch.setattr(candidates, "_TILE", tile)
    assert torch.equal(nearest_neighbors(points, num_neighbors=5).distance, whole.distance)


@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]), st.sampled_from([1, 64]))
def test_bounds_enclose_the_exact_distances(seed, dtype, dim):
    rng = torch.Generator().manual_seed(seed)
    scales = 10 ** torch.randint(-6, 7, (12, 1), generator=rng).double()
    first = (torch.randn(12, dim, generator=rng).double() * scales + scales[0]).to(dtype).double()
    second = first[torch.randperm(12, generator=rng)] * (1 + 1e-7 * torch.randn(12, 1, generator=rng))
    search = pairwise.Filter.build(first, second, dtype)
    lower = search.lower_bounds(search.query, search.reference).double() * search.scale**2
    squared = _direct(first, second).square()
    norms = (first - second.mean(0)).square().sum(1)[:, None] + (second - second.mean(0)).square().sum(1)
    # The error is a fraction of the sum of squared norms; float64 rounding of this check itself: 1e-13.
    assert bool((lower <= squared + 1e-13 * norms * (dtype == torch.float64)).all())
    assert bool((lower + 2.2 * search.error * norms + 1e-12 * norms >= squared).all())


@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]))
def test_mutual_memberships_are_those_of_two_calls(seed, dtype):
    rng = torch.Generator().manual_seed(seed)
    first = torch.randint(0, 4, (17, 2), generator=rng).to(dtype)
    second = torch.randint(0, 4, (11, 2), generator=rng).to(dtype)
    first_radius, second_radius = (torch.randint(0, 3, (n,), generator=rng).double() for n in (17, 11))
    in_second, in_first = mutual_ball_membership(first, first_radius, second, second_radius)
    for got, (points, centers, radius) in (
        (in_second, (first, second, second_radius)),
        (in_first, (second, first, first_radius)),
    ):
        inside = _direct(points, centers) <= radius
        assert torch.equal(got.balls_per_query, inside.sum(1))
        assert torch.equal(got.queries_per_ball, inside.sum(0))
        assert all(map(torch.equal, got, ball_membership(points, centers, radius)))


@pytest.mark.parametrize("name", _hard_sets())
def test_memberships_are_exact_on_hard_sets(name):
    points = _hard_sets()[name]
    distance = _direct(points, points)
    radius = distance.sort(dim=1).values[:, 5]
    got = ball_membership(points, points, radius)
    assert torch.equal(got.balls_per_query, (distance <= radius).sum(1))
    assert torch.equal(got.queries_per_ball, (distance <= radius).sum(0))


def test_infinite_balls_hold_everything():
    assert (
        ball_membership(
            _points(4, 2, 0), _points(3, 2, 1), torch.full((3,), torch.inf)
        ).balls_per_query.tolist()
        == [3] * 4
    )
