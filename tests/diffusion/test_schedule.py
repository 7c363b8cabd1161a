"""Noise schedules against diffusers and against their own laws."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDPMScheduler

from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.schedule import NoiseSchedule, cosine_schedule, linear_schedule
from fedsynth.errors import FedSynthError


@pytest.mark.parametrize(
    ("schedule", "name"), [(linear_schedule(), "linear"), (cosine_schedule(), "squaredcos_cap_v2")]
)
def test_schedule_equals_that_of_diffusers(schedule, name):
    reference = DDPMScheduler(1000, beta_start=1e-4, beta_end=0.02, beta_schedule=name).alphas_cumprod
    torch.testing.assert_close(schedule.alpha_bar.float(), reference, rtol=2e-4, atol=1e-8)


def test_linear_schedule_is_the_running_product_of_one_minus_beta():
    alpha_bar, product = linear_schedule(), 1.0
    for t in range(1000):
        product *= 1 - (1e-4 + (0.02 - 1e-4) * t / 999)
        assert float(alpha_bar.alpha_bar[t]) == pytest.approx(product, rel=1e-11)


@pytest.mark.parametrize("schedule", [linear_schedule(), cosine_schedule(), cosine_schedule(50)])
def test_signal_falls_to_almost_nothing(schedule):
    assert (schedule.alpha_bar.diff() < 0).all()
    assert schedule.alpha_bar[-1] < 1e-4
    signal, noise = schedule.scales(torch.arange(schedule.num_timesteps), torch.float64)
    torch.testing.assert_close(signal**2 + noise**2, torch.ones(schedule.num_timesteps, 1).double())


def test_schedule_cannot_be_changed():
    with pytest.raises(AttributeError):
        linear_schedule().alpha_bar = torch.ones(1)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: linear_schedule(100), "scale them by 1000 / num_timesteps"),
        (lambda: linear_schedule(0), "num_timesteps must be at least 1"),
        (lambda: linear_schedule(beta_start=0.0), "0 < beta_start"),
        (lambda: linear_schedule(beta_start=0.5, beta_end=0.1), "0 < beta_start"),
        (lambda: linear_schedule(beta_end=1.0), "beta_end < 1"),
        (lambda: cosine_schedule(max_beta=1.0), "max_beta"),
        (lambda: NoiseSchedule(torch.tensor([0.5, 0.6, 1e-5]).double()), "fall strictly"),
        (lambda: NoiseSchedule(torch.tensor([0.5, 1e-5])), "float64"),
        (lambda: NoiseSchedule(torch.tensor([]).double()), "non-empty"),
    ],
)
def test_impossible_schedules_are_refused(build, said):
    with pytest.raises(DiffusionInputError, match=said):
        build()


def test_the_advice_for_short_schedules_works():
    assert linear_schedule(100, beta_start=1e-3, beta_end=0.2).num_timesteps == 100


def test_diffusion_errors_are_both_ours_and_value_errors():
    assert issubclass(DiffusionInputError, FedSynthError)
    assert issubclass(DiffusionInputError, ValueError)
