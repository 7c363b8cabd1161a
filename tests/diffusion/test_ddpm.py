"""Forward process and loss, Eqs. (26) and (27)."""

from __future__ import annotations

import math

import pytest
import torch
from diffusers import DDPMScheduler
from scipy import stats

from fedsynth.diffusion.ddpm import add_noise, noise_prediction_loss
from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.schedule import linear_schedule

SCHEDULE = linear_schedule()


class Recorder:
    """A denoiser that predicts zero and keeps what it was asked."""

    null_label = 2

    def __call__(self, x, timestep, label):
        self.x, self.timestep, self.label = x, timestep, label
        return torch.zeros_like(x)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_add_noise_equals_that_of_diffusers():
    x0, noise = torch.randn(50, 8, generator=source()), torch.randn(50, 8, generator=source(1))
    timestep = torch.linspace(0, 999, 50).long()
    reference = DDPMScheduler(1000, beta_start=1e-4, beta_end=0.02).add_noise(x0, noise, timestep)
    torch.testing.assert_close(add_noise(x0, noise, timestep, SCHEDULE), reference, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("t", [0, 100, 500, 999])
def test_noisy_latents_follow_the_closed_form_normal(t):
    """q(x_t | x_0) = N(√ᾱ_t x_0, 1 - ᾱ_t), by a Kolmogorov-Smirnov test at a fixed seed."""
    noise = torch.randn(20_000, 1, generator=source(t), dtype=torch.float64)
    x_t = add_noise(torch.full_like(noise, 3.0), noise, torch.full((20_000,), t), SCHEDULE)
    alpha_bar = float(SCHEDULE.alpha_bar[t])
    law = stats.norm(math.sqrt(alpha_bar) * 3.0, math.sqrt(1 - alpha_bar))
    assert stats.kstest(x_t.squeeze(1).numpy(), law.cdf).pvalue > 0.01


def test_one_big_step_equals_many_small_ones_in_distribution():
    """Iterating x_s = √(1 - β_s) x_(s-1) + √β_s z from x_0 gives the moments of Eq. (26)."""
    alpha_bar = torch.cat([torch.ones(1).double(), SCHEDULE.alpha_bar])
    mean, variance = 1.0, 0.0
    for t in range(300):
        alpha = float(alpha_bar[t + 1] / alpha_bar[t])
        mean, variance = math.sqrt(alpha) * mean, alpha * variance + 1 - alpha
    signal, noise = SCHEDULE.scales(torch.tensor([299]), torch.float64)
    assert mean == pytest.approx(signal.item(), rel=1e-9)
    assert variance == pytest.approx(noise.item() ** 2, rel=1e-9)


def test_loss_of_a_zero_prediction_is_the_mean_square_of_the_noise():
    """It has mean 1 and standard deviation √(2 / (rows · dim)); four of those are allowed."""
    x0, label = torch.zeros(4000, 16), torch.zeros(4000, dtype=torch.int64)
    loss = noise_prediction_loss(Recorder(), x0, label, SCHEDULE, 0.1, source())
    assert loss.item() == pytest.approx(1.0, abs=4 * math.sqrt(2 / (4000 * 16)))


def test_loss_of_a_perfect_denoiser_is_zero():
    """With every x_0 zero the noise can be read off x_t."""

    class Perfect(Recorder):
        def __call__(self, x, timestep, label):
            return x / SCHEDULE.scales(timestep, x.dtype)[1]

    x0, label = torch.zeros(100, 4).double(), torch.zeros(100, dtype=torch.int64)
    loss = noise_prediction_loss(Perfect(), x0, label, SCHEDULE, 0.1, source())
    assert loss.item() < 1e-20


def test_timesteps_are_uniform_and_labels_dropped_at_the_given_rate():
    recorder, n = Recorder(), 50_000
    label = torch.arange(n) % 2
    noise_prediction_loss(recorder, torch.zeros(n, 1), label, SCHEDULE, 0.1, source())
    counts = torch.bincount(recorder.timestep, minlength=1000)
    assert len(counts) == 1000
    assert stats.chisquare(counts.numpy()).pvalue > 0.01
    is_dropped = recorder.label == recorder.null_label
    assert is_dropped.double().mean().item() == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / n))
    assert torch.equal(recorder.label[~is_dropped], label[~is_dropped])


@pytest.mark.parametrize(("dropout", "dropped"), [(0.0, 0), (1.0, 64)])
def test_extreme_label_dropouts_drop_none_and_all(dropout, dropped):
    recorder = Recorder()
    noise_prediction_loss(
        recorder, torch.zeros(64, 2), torch.zeros(64, dtype=torch.int64), SCHEDULE, dropout, source()
    )
    assert int((recorder.label == 2).sum()) == dropped


def test_loss_is_a_function_of_the_generator_alone():
    x0, label = torch.ones(8, 2), torch.zeros(8, dtype=torch.int64)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = noise_prediction_loss(Recorder(), x0, label, SCHEDULE, 0.1, source(5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert noise_prediction_loss(Recorder(), x0, label, SCHEDULE, 0.1, source(5)) == first
    assert noise_prediction_loss(Recorder(), x0, label, SCHEDULE, 0.1, source(6)) != first


def test_wrong_input_is_named_in_the_error():
    x0, label = torch.ones(8, 2), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(DiffusionInputError, match=r"label must be an int64 tensor of shape \[8\]"):
        noise_prediction_loss(Recorder(), x0, label[:3], SCHEDULE, 0.1, source())
    with pytest.raises(DiffusionInputError, match="label must be an int64"):
        noise_prediction_loss(Recorder(), x0, label.float(), SCHEDULE, 0.1, source())
    with pytest.raises(DiffusionInputError, match="x0 must be a floating-point"):
        noise_prediction_loss(Recorder(), x0.long(), label, SCHEDULE, 0.1, source())
    with pytest.raises(DiffusionInputError, match="label_dropout"):
        noise_prediction_loss(Recorder(), x0, label, SCHEDULE, 1.1, source())
    with pytest.raises(DiffusionInputError, match="must match x0"):
        add_noise(x0, x0[:3], torch.zeros(8, dtype=torch.int64), SCHEDULE)
    with pytest.raises(DiffusionInputError, match=r"pass its \.module"):
        noise_prediction_loss(torch.nn.Identity(), x0, label, SCHEDULE, 0.1, source())
