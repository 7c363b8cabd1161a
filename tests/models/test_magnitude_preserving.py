"""EDM2's magnitude-preserving layers: the magnitudes they promise, and forced weight normalization."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from fedsynth.models.inputs import ModelInputError
from fedsynth.models.magnitude_preserving import (
    SILU_MAGNITUDE,
    FourierFeatures,
    MPLinear,
    NoiseUncertainty,
    mp_cat,
    mp_silu,
    mp_sum,
    normalize_magnitude,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def magnitude(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


def test_constant_of_the_silu_is_its_magnitude_for_normal_inputs():
    square, _ = quad(lambda z: (z * expit(z)) ** 2 * norm.pdf(z), -20, 20)
    assert pytest.approx(math.sqrt(square), abs=5e-4) == SILU_MAGNITUDE
    torch.testing.assert_close(mp_silu(normal(5)), torch.nn.functional.silu(normal(5)) / 0.596)


@given(st.floats(0, 1))
def test_sums_of_uncorrelated_inputs_keep_their_magnitude(share):
    """Of 90,000 draws the correlation and each magnitude have deviations of 1/300 and less; five are allowed."""
    total = mp_sum(normal(300, 300), normal(300, 300, seed=1), share)
    assert magnitude(total) == pytest.approx(1, abs=5 / 300)


def test_a_share_of_zero_or_one_is_one_of_the_inputs():
    a, b = normal(4), normal(4, seed=1)
    assert torch.equal(mp_sum(a, b, 0.0), a)
    assert torch.equal(mp_sum(a, b, 1.0), b)


@pytest.mark.parametrize(("m", "n"), [(8, 8), (4, 12), (16, 1)])
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_concatenation_keeps_the_magnitude_and_the_shares(m, n, share):
    joined = mp_cat(torch.ones(2, m, 3, 3), -torch.ones(2, n, 3, 3), share)
    assert joined.shape == (2, m + n, 3, 3)
    assert magnitude(joined) == pytest.approx(1)
    energy = joined[:, m:].square().sum() / joined.square().sum()
    assert energy.item() == pytest.approx(share**2 / (share**2 + (1 - share) ** 2))


def test_normalized_channels_have_magnitude_one():
    x = 37.0 * normal(3, 16, 4, 4) + 5
    pixels = normalize_magnitude(x, dims=(1,)).square().mean(1)
    torch.testing.assert_close(pixels, torch.ones_like(pixels), atol=1e-4, rtol=0)
    assert normalize_magnitude(torch.zeros(1, 4), dims=(1,)).abs().max() == 0


def test_fourier_features_have_magnitude_one():
    """cos² of a uniform phase averages ½ with deviation √⅛; five standard errors of 4096 features."""
    torch.manual_seed(0)
    features = FourierFeatures(4096)(torch.linspace(-2, 2, 9))
    torch.testing.assert_close(
        features.square().mean(1), torch.ones(9), atol=5 * 2 * (1 / 8 / 4096) ** 0.5, rtol=0
    )


@pytest.mark.parametrize("kernel_size", [0, 1, 3])
def test_layers_keep_the_magnitude_of_white_inputs(kernel_size):
    """Rows have length 1, so every output has variance 1 (away from the border)."""
    torch.manual_seed(0)
    layer = MPLinear(32, 64, kernel_size).double().eval()
    x = normal(64, 32, 18, 18) if kernel_size else normal(20_000, 32)
    y = layer(x)
    inner = y[..., 1:-1, 1:-1] if kernel_size else y
    assert y.shape == (len(x), 64, *x.shape[2:])
    assert magnitude(inner) == pytest.approx(1, abs=0.02)
    torch.testing.assert_close(layer(x, gain=3.0), 3.0 * y)


def test_output_does_not_depend_on_the_size_of_the_weights():
    layer = MPLinear(8, 4, 3).double().eval()
    before, x = layer(normal(2, 8, 5, 5)), normal(2, 8, 5, 5)
    with torch.no_grad():
        layer.weight.mul_(50)
    torch.testing.assert_close(layer(x), before, rtol=1e-3, atol=1e-3)


def test_gradients_are_perpendicular_to_the_rows():
    layer = MPLinear(8, 4).double().eval()
    layer(normal(16, 8)).pow(3).sum().backward()
    products = (layer.weight * layer.weight.grad).sum(1)
    lengths = layer.weight.norm(dim=1) * layer.weight.grad.norm(dim=1)
    assert (products.abs() < 1e-3 * lengths).all()


def test_training_puts_weights_back_to_magnitude_one_and_evaluation_leaves_them():
    layer = MPLinear(8, 4, 3)
    with torch.no_grad():
        layer.weight.mul_(7)
    before = layer.weight.clone()
    layer.eval()(torch.randn(2, 8, 5, 5))
    assert torch.equal(layer.weight, before)
    layer.train()(torch.randn(2, 8, 5, 5))
    rows = layer.weight.detach().square().mean(dim=(1, 2, 3)).sqrt()
    torch.testing.assert_close(rows, torch.ones(4), atol=1e-3, rtol=0)


def test_uncertainty_starts_at_zero_and_learns_the_logarithm_of_the_error():
    """The minimum of mean(e / exp(u) + u) is u = ln e(σ); here ln e = -1 - 0.5 ln σ."""
    torch.manual_seed(0)
    head = NoiseUncertainty(64)
    sigma = torch.linspace(-2, 1.5, 64).exp()
    error = (-1 - 0.5 * sigma.log()).exp()
    assert torch.equal(head(sigma), torch.zeros(64))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        u = head(sigma)
        (error / u.exp() + u).mean().backward()
        optimizer.step()
    torch.testing.assert_close(head(sigma), error.log(), atol=0.1, rtol=0)


def test_empty_layers_are_refused():
    with pytest.raises(ModelInputError, match="channels_in"):
        MPLinear(0, 4)
    with pytest.raises(ModelInputError, match="num_features"):
        FourierFeatures(0)
