"""EDM's preconditioning: closed forms, and diffusers as an independent reference."""

from __future__ import annotations

import math

import pytest
import torch
from diffusers import EDMEulerScheduler
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsynth.diffusion.edm import EDMDenoiser, edm_scalings
from fedsynth.diffusion.inputs import DiffusionInputError

SIGMAS = st.floats(-6, 5).map(math.exp)
SIGMA_DATA = st.floats(0.1, 3)


class Recorder(nn.Module):
    """A network that returns a fixed multiple of its input and keeps what it was asked."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x, noise, condition):
        self.x, self.noise, self.condition = x, noise, condition
        return self.factor * x


def images(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@given(SIGMAS, SIGMA_DATA)
def test_input_and_target_of_the_network_have_variance_one(sigma, sigma_data):
    """x = x_0 + σ n with Var x_0 = σ_d²; F's target is (x_0 - c_skip x) / c_out."""
    skip, out, scale_in, _ = (
        v.item() for v in edm_scalings(torch.tensor(sigma, dtype=torch.float64), sigma_data)
    )
    assert scale_in**2 * (sigma_data**2 + sigma**2) == pytest.approx(1)
    assert ((1 - skip) ** 2 * sigma_data**2 + skip**2 * sigma**2) / out**2 == pytest.approx(1)


@given(SIGMAS, SIGMA_DATA, st.floats(-1, 1))
def test_no_other_skip_makes_the_networks_errors_count_less(sigma, sigma_data, change):
    """c_out² is the variance of x_0 - c_skip x, which the chosen c_skip minimizes."""
    skip, out, _, _ = (v.item() for v in edm_scalings(torch.tensor(sigma, dtype=torch.float64), sigma_data))
    other = skip + change
    assert (1 - other) ** 2 * sigma_data**2 + other**2 * sigma**2 >= out**2 * (1 - 1e-9)


@pytest.mark.parametrize("sigma", [0.002, 0.5, 3.0, 80.0])
def test_preconditioning_equals_that_of_diffusers(sigma):
    reference = EDMEulerScheduler(sigma_data=0.5)
    network, x = Recorder(0.3), images()
    level = torch.tensor(sigma, dtype=torch.float64)
    denoised = EDMDenoiser(network)(x, level, None)
    torch.testing.assert_close(network.x, reference.precondition_inputs(x, level))
    torch.testing.assert_close(network.noise, reference.precondition_noise(level).expand(3))
    torch.testing.assert_close(denoised, reference.precondition_outputs(x, 0.3 * network.x, level))


def test_a_network_of_zeros_is_the_exact_denoiser_of_normal_data():
    """E[x_0 | x] of N(0, σ_d²) is σ_d² / (σ_d² + σ²) x, so the network has nothing to add."""
    x = images()
    denoised = EDMDenoiser(Recorder(0.0), sigma_data=0.7)(x, torch.tensor(1.3, dtype=torch.float64), None)
    torch.testing.assert_close(denoised, 0.49 / (0.49 + 1.69) * x)


def test_noise_levels_of_rows_and_of_the_batch_agree():
    x, condition = images(), torch.randn(3, 5, dtype=torch.float64)
    sigmas = torch.tensor([0.1, 1.0, 9.0], dtype=torch.float64)
    network = Recorder(0.4)
    together = EDMDenoiser(network)(x, sigmas, condition)
    assert network.condition is condition
    for row, sigma in enumerate(sigmas):
        alone = EDMDenoiser(Recorder(0.4))(x, sigma, condition)[row]
        torch.testing.assert_close(together[row], alone, rtol=0, atol=0)


@pytest.mark.parametrize("sigma_data", [0.0, -1.0, math.nan, math.inf])
def test_impossible_deviations_of_data_are_refused(sigma_data):
    with pytest.raises(DiffusionInputError, match="sigma_data"):
        EDMDenoiser(Recorder(0.0), sigma_data)
    with pytest.raises(DiffusionInputError, match="sigma_data"):
        edm_scalings(torch.ones(1), sigma_data)


@pytest.mark.parametrize(
    ("x", "sigma", "said"),
    [
        (torch.zeros(2, 3), torch.tensor(1.0), "shape \\[rows"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor(1.0), "Encode"),
        (torch.zeros(2, 1, 4, 4), torch.ones(3), "sigma"),
        (torch.zeros(2, 1, 4, 4), torch.ones(2, 1), "sigma"),
        (torch.zeros(2, 1, 4, 4), torch.tensor(1), "sigma"),
    ],
)
def test_wrong_inputs_are_refused(x, sigma, said):
    with pytest.raises(DiffusionInputError, match=said):
        EDMDenoiser(Recorder(0.0))(x, sigma, None)
