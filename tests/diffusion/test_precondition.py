"""The straight-line part of a preconditioned denoiser is exact where a straight line is."""

import math
from itertools import pairwise

import pytest
import torch

from fedsynth.diffusion.ddim import ddim_timesteps, denoise_ddim
from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.precondition import PreconditionedDenoiser
from fedsynth.diffusion.schedule import linear_schedule
from fedsynth.models.denoiser import LatentDenoiser

SCHEDULE = linear_schedule()


def untrained(dim: int = 8) -> PreconditionedDenoiser:
    """The last layer of a LatentDenoiser starts at zero, so F = 0."""
    return PreconditionedDenoiser(LatentDenoiser(dim, 16, 1, 8), SCHEDULE)


@pytest.mark.parametrize("timestep", [0, 10, 500, 980])
def test_without_a_network_it_is_the_conditional_mean_of_standard_normal_latents(timestep: int) -> None:
    """x_0, ε ~ N(0, 1) independent: E[ε | x_t] = Cov(ε, x_t) / Var(x_t) · x_t = √(1 − ᾱ) x_t."""
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    predicted = untrained()(x, torch.tensor(timestep), torch.zeros(5, dtype=torch.int64))
    expected = (1 - SCHEDULE.alpha_bar[timestep]).sqrt().float() * x
    torch.testing.assert_close(predicted, expected)


def test_an_untrained_network_scales_noise_by_the_product_of_cosines() -> None:
    """With ᾱ = cos²θ a DDIM step multiplies by cos θ' cos θ + sin θ' sin θ = cos(θ − θ')."""
    angles = [float(SCHEDULE.alpha_bar[t].sqrt().acos()) for t in ddim_timesteps(1000, 50)] + [0.0]
    factor = math.prod(math.cos(now - then) for now, then in pairwise(angles))
    noise = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    samples = denoise_ddim(
        untrained(), noise, torch.zeros(6, dtype=torch.int64),
        schedule=SCHEDULE, num_steps=50, guidance_scale=1.0, batch_size=6,
    )  # fmt: skip
    torch.testing.assert_close(samples, factor * noise)
    assert 0.95 < factor < 1  # fifty steps shrink the spread by 4 %


def test_noisy_inputs_are_copied_whatever_the_network_says() -> None:
    """At t = T − 1, √ᾱ is 0.006: a prediction of F off by one moves ε̂ by 0.006 only."""
    denoiser = untrained()
    torch.nn.init.ones_(denoiser.network.output_layer[-1].bias)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    predicted = denoiser(x, torch.tensor(999), torch.zeros(5, dtype=torch.int64))
    assert float((predicted - x).detach().abs().max()) < 0.007


def test_one_timestep_for_all_rows_equals_one_a_row() -> None:
    denoiser, x = untrained(), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    label = torch.tensor([0, 1, 2])
    torch.testing.assert_close(denoiser(x, torch.tensor(7), label), denoiser(x, torch.full((3,), 7), label))


def test_a_network_without_a_null_label_is_refused() -> None:
    with pytest.raises(DiffusionInputError, match="null_label"):
        PreconditionedDenoiser(torch.nn.Linear(2, 2), SCHEDULE)
