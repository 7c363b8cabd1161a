"""Standardization and its inverse, Eq. (30)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.standardize import LatentScaler


def samples(n: int = 200, d: int = 5, seed: int = 0) -> torch.Tensor:
    base = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return base * torch.linspace(0.01, 20, d) + torch.linspace(-100, 100, d)


def test_scaler_equals_that_of_scikit_learn():
    h = samples()
    reference = StandardScaler().fit(h.double().numpy())
    scaler = LatentScaler.fit(h)
    np.testing.assert_allclose(scaler.mean.numpy(), reference.mean_, rtol=1e-12)
    np.testing.assert_allclose(scaler.std.numpy(), reference.scale_, rtol=1e-12)


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_restore_undoes_standardize(n, d, seed):
    h = samples(n, d, seed)
    scaler = LatentScaler.fit(h)
    torch.testing.assert_close(scaler.restore(scaler.standardize(h)), h, atol=1e-4, rtol=1e-5)


def test_standardized_samples_have_mean_zero_and_variance_one():
    x = LatentScaler.fit(samples()).standardize(samples().double())
    torch.testing.assert_close(x.mean(0), torch.zeros(5).double(), atol=1e-10, rtol=0)
    torch.testing.assert_close(x.var(0, correction=0), torch.ones(5).double())


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_constant_dimension_gets_deviation_one_and_standardizes_to_zero(constant):
    h = samples()
    h[:, 2] = constant
    scaler = LatentScaler.fit(h)
    assert scaler.std[2] == 1
    assert scaler.standardize(h)[:, 2].abs().max() < 1e-9 * max(1.0, constant)
    torch.testing.assert_close(scaler.restore(torch.zeros(1, 5))[0, 2].item(), constant, rtol=1e-6, atol=0)


def test_tiny_but_real_deviations_are_kept():
    h = torch.tensor([[1.0], [1.0], [1.0 + 1e-6]])
    assert 0 < LatentScaler.fit(h).std.item() < 1e-6


def test_data_type_of_latents_is_kept():
    scaler = LatentScaler.fit(samples())
    assert scaler.standardize(samples()).dtype == torch.float32
    assert scaler.restore(samples().double()).dtype == torch.float64


@pytest.mark.parametrize("bad", [torch.zeros(1, 3), torch.zeros(5), torch.full((4, 2), math.nan)])
def test_samples_without_moments_are_refused(bad):
    with pytest.raises(DiffusionInputError):
        LatentScaler.fit(bad)


def test_wrong_statistics_and_latents_are_refused():
    with pytest.raises(DiffusionInputError, match="std positive"):
        LatentScaler(torch.zeros(2), torch.tensor([1.0, 0.0]))
    with pytest.raises(DiffusionInputError, match="vectors of one length"):
        LatentScaler(torch.zeros(2), torch.ones(3))
    with pytest.raises(DiffusionInputError, match="5 dimensions"):
        LatentScaler.fit(samples()).standardize(torch.zeros(3, 4))
    with pytest.raises(DiffusionInputError, match="floating-point"):
        LatentScaler.fit(samples()).restore(torch.zeros(3, 5, dtype=torch.int64))


def correlated(n: int = 4000, d: int = 6) -> torch.Tensor:
    stream = torch.Generator().manual_seed(0)
    line = torch.randn(n, 1, generator=stream, dtype=torch.float64) * 10
    across = torch.randn(n, d, generator=stream, dtype=torch.float64) * torch.logspace(0, -3, d).double()
    return line @ torch.ones(1, d).double() + across + 5


def test_whitened_samples_have_identity_covariance():
    h = correlated()
    x = LatentScaler.fit_whitening(h).standardize(h)
    torch.testing.assert_close(x.T @ x / len(x), torch.eye(6).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.mean(0), torch.zeros(6).double(), atol=1e-8, rtol=0)


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_restore_undoes_whitening(n, d, seed):
    h = samples(n, d, seed)
    scaler = LatentScaler.fit_whitening(h)
    torch.testing.assert_close(scaler.restore(scaler.standardize(h)), h, atol=1e-4, rtol=1e-5)


def test_whitening_restores_standard_normal_draws_to_the_moments_of_the_samples():
    h = correlated()
    scaler = LatentScaler.fit_whitening(h)
    assert scaler.basis is not None
    factor = scaler.basis * scaler.std
    torch.testing.assert_close(factor @ factor.T, torch.cov(h.T, correction=0), atol=1e-8, rtol=1e-8)


def test_whitening_leaves_an_axis_without_variance_at_zero():
    h = correlated()
    h[:, 3] = h[:, 2]
    scaler = LatentScaler.fit_whitening(h)
    assert scaler.std[-1] == 1
    assert scaler.standardize(h)[:, -1].abs().max() < 1e-6


@pytest.mark.parametrize("basis", [torch.ones(5, 5), torch.eye(4), torch.full((5, 5), math.nan)])
def test_a_basis_that_is_not_orthogonal_is_refused(basis):
    with pytest.raises(DiffusionInputError, match="orthogonal"):
        LatentScaler(torch.zeros(5), torch.ones(5), basis)
