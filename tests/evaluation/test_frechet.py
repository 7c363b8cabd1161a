"""Fréchet distance: Gaussian closed forms and scipy's matrix square root."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from fedsynth.evaluation import EvaluationError, frechet_distance, gaussian_frechet_distance


def _points(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_dimensional_gaussians_have_the_closed_form():
    # W2² of N(1, 4) and N(-2, 9) is (1+2)² + (2-3)².
    value = gaussian_frechet_distance(
        torch.tensor([1.0]), torch.tensor([[4.0]]), torch.tensor([-2.0]), torch.tensor([[9.0]])
    )
    assert value == pytest.approx(10.0, abs=1e-12)


def test_commuting_covariances_have_the_closed_form():
    first, second = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([16.0, 1.0, 0.0])
    mean = torch.zeros(3)
    value = gaussian_frechet_distance(mean, first.diag(), mean, second.diag())
    assert value == pytest.approx(float((first.sqrt() - second.sqrt()).square().sum()), abs=1e-12)


def test_equals_the_formula_with_scipy_matrix_square_root():
    real, synthetic = _points(300, 10, 0), _points(250, 10, 1) @ _points(10, 10, 2) + 0.5
    s1 = np.cov(real.numpy().T) + 1e-6 * np.eye(10)
    s2 = np.cov(synthetic.numpy().T) + 1e-6 * np.eye(10)
    root = scipy.linalg.sqrtm(s1 @ s2).real
    expected = float((real.mean(0) - synthetic.mean(0)).square().sum()) + np.trace(s1 + s2 - 2 * root)
    assert frechet_distance(real=real, synthetic=synthetic) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("n", [5, 500])
def test_identical_sets_are_at_distance_zero_even_with_singular_covariance(n):
    points = _points(n, 64, 3)
    assert frechet_distance(real=points, synthetic=points.clone()) < 1e-10


def test_a_pure_shift_costs_its_squared_length():
    points = _points(400, 6, 4)
    assert frechet_distance(real=points, synthetic=points + 0.5) == pytest.approx(6 * 0.25, rel=1e-9)


def test_is_symmetric_and_invariant_under_rotation():
    real, synthetic = _points(200, 5, 5), _points(200, 5, 6) * 1.7
    rotation = torch.linalg.qr(_points(5, 5, 7)).Q
    value = frechet_distance(real=real, synthetic=synthetic)
    assert frechet_distance(real=synthetic, synthetic=real) == pytest.approx(value, rel=1e-10)
    assert frechet_distance(real=real @ rotation, synthetic=synthetic @ rotation) == pytest.approx(
        value, rel=1e-9
    )


def test_float32_input_is_computed_in_float64():
    real, synthetic = _points(100, 4, 8).float(), _points(100, 4, 9).float()
    assert frechet_distance(real=real, synthetic=synthetic) == frechet_distance(
        real=real.double(), synthetic=synthetic.double()
    )


def test_shrinkage_cancels_between_equal_covariances():
    points = _points(50, 3, 10)
    value = frechet_distance(real=points, synthetic=points + 1.0, shrinkage=0.1)
    assert value == pytest.approx(3.0, rel=1e-9)


def test_a_single_point_has_no_covariance():
    with pytest.raises(EvaluationError, match="at least 2 points"):
        frechet_distance(real=torch.zeros(1, 3), synthetic=torch.zeros(5, 3))


def test_equals_torch_fidelity():
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric

    real, synthetic = _points(300, 12, 11), _points(250, 12, 12) * 1.4 + 0.2
    statistics = [fid_features_to_statistics(points) for points in (real, synthetic)]
    expected = fid_statistics_to_metric(*statistics, verbose=False)["frechet_inception_distance"]
    assert frechet_distance(real=real, synthetic=synthetic, shrinkage=0.0) == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize(
    ("mean", "covariance", "message"),
    [
        (torch.zeros(2), torch.eye(3), "shapes"),
        (torch.zeros(0), torch.zeros(0, 0), "shapes"),
        (torch.zeros(2), torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "positive semidefinite"),
        (torch.zeros(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.tensor([0.0, torch.nan]), torch.eye(2), "NaN"),
        (torch.zeros(2), torch.full((2, 2), torch.inf), "infinite"),
        (torch.zeros(3), torch.eye(3), "same number of features"),
    ],
)
def test_impossible_moments_are_refused(mean, covariance, message):
    with pytest.raises(EvaluationError, match=message):
        gaussian_frechet_distance(torch.zeros(2), torch.eye(2), mean, covariance)


@pytest.mark.parametrize("shrinkage", [-1e-6, float("nan"), float("inf"), "1", None])
def test_impossible_shrinkage_is_refused(shrinkage):
    with pytest.raises(EvaluationError, match="shrinkage"):
        frechet_distance(real=_points(9, 2, 0), synthetic=_points(9, 2, 1), shrinkage=shrinkage)
