"""Kernel two-sample statistic: closed form, unbiasedness, scikit-learn's kernel."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

from fedsynth.evaluation import EvaluationError, median_bandwidth, mmd, rbf_mmd


def _points(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equals_the_sums_over_scikit_learn_kernels():
    x, y, sigma = _points(70, 4, 0), _points(50, 4, 1) + 0.3, 1.7
    gamma = 1 / (2 * sigma**2)
    kxx, kyy, kxy = (rbf_kernel(a.numpy(), b.numpy(), gamma=gamma) for a, b in ((x, x), (y, y), (x, y)))
    expected = (kxx.sum() - 70) / (70 * 69) + (kyy.sum() - 50) / (50 * 49) - 2 * kxy.mean()
    assert rbf_mmd(real=x, synthetic=y, bandwidth=sigma) == pytest.approx(expected, abs=1e-13)


def test_two_pairs_of_points_by_hand():
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    kernel = [math.exp(-(d**2) / 2) for d in (0, 1, 2)]
    expected = kernel[1] + kernel[2] - 2 * (kernel[0] + kernel[2] + kernel[1] + kernel[1]) / 4
    assert rbf_mmd(real=x, synthetic=y, bandwidth=1.0) == pytest.approx(expected, abs=1e-15)


def test_expectation_is_zero_when_the_distributions_agree():
    values = torch.tensor(
        [rbf_mmd(real=_points(30, 3, 2 * i), synthetic=_points(30, 3, 2 * i + 1)) for i in range(200)]
    )
    # Four standard errors of the mean; a biased statistic would be off by about 1/30.
    assert abs(float(values.mean())) < 4 * float(values.std()) / 200**0.5 < 0.01
    assert float(values.min()) < 0


def test_gaussian_shift_has_the_closed_form():
    # E k(x, y) = (σ²/(σ²+2))^{d/2} exp(-||shift||²/(2(σ²+2))) for unit Gaussians.
    x, y, sigma = _points(4000, 2, 3), _points(4000, 2, 4) + 1.0, 1.5
    same = sigma**2 / (sigma**2 + 2)
    expected = 2 * same * (1 - math.exp(-2 / (2 * (sigma**2 + 2))))
    assert rbf_mmd(real=x, synthetic=y, bandwidth=sigma) == pytest.approx(expected, abs=0.015)


def test_median_bandwidth_is_the_median_over_pairs_of_real_points_only():
    real = torch.tensor([[0.0], [1.0], [3.0]])  # distances 1, 2, 3
    assert median_bandwidth(real) == 2.0
    synthetic = _points(20, 1, 5) * 100
    assert rbf_mmd(real=real, synthetic=synthetic) == rbf_mmd(real=real, synthetic=synthetic, bandwidth=2.0)


def test_value_does_not_depend_on_the_chunk_size(monkeypatch):
    x, y = _points(40, 3, 6), _points(30, 3, 7)
    whole = rbf_mmd(real=x, synthetic=y)
    monkeypatch.setattr(mmd, "CHUNK_ELEMENTS", 61)
    assert rbf_mmd(real=x, synthetic=y) == pytest.approx(whole, abs=1e-14)


def test_a_large_common_offset_changes_nothing():
    x, y = _points(40, 3, 8), _points(30, 3, 9)
    moved = rbf_mmd(real=x + 1e6, synthetic=y + 1e6, bandwidth=1.0)
    assert moved == pytest.approx(rbf_mmd(real=x, synthetic=y, bandwidth=1.0), abs=1e-8)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.inf, math.nan])
def test_impossible_bandwidths_are_refused(bandwidth):
    with pytest.raises(EvaluationError, match="bandwidth"):
        rbf_mmd(real=_points(5, 2, 0), synthetic=_points(5, 2, 1), bandwidth=bandwidth)


def test_constant_points_have_no_median_bandwidth():
    with pytest.raises(EvaluationError, match="median distance"):
        rbf_mmd(real=torch.ones(9, 2), synthetic=_points(9, 2, 0))


def test_equals_torch_fidelity():
    from torch_fidelity.metric_kid import kernel_mmd

    x, y = _points(60, 5, 10), _points(60, 5, 11) + 0.4
    expected = kernel_mmd(x.numpy(), y.numpy(), kid_kernel="rbf", kid_kernel_rbf_sigma=1.9)
    assert rbf_mmd(real=x, synthetic=y, bandwidth=1.9) == pytest.approx(expected, abs=1e-13)


def test_extreme_bandwidths_see_only_duplicates_or_no_difference():
    x, y = torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([[0.0], [3.0]])
    # Of 3 pairs within x one is a duplicate, of 6 pairs across two are.
    assert rbf_mmd(real=x, synthetic=y, bandwidth=1e-9) == pytest.approx(1 / 3 - 2 * 2 / 6, abs=1e-12)
    assert rbf_mmd(real=x, synthetic=y, bandwidth=1e100) == 0.0
