"""Samplers of EDM's ODE: exact denoisers, orders of convergence, diffusers and SciPy as references.

For a mixture Σ π_k N(μ_k, v_k) the exact denoiser is E[x_0 | x] = Σ r_k (μ_k + v_k / (v_k + σ²) (x - μ_k)) with r_k
the posterior of component k under N(μ_k, v_k + σ²). One component alone is carried along x(σ) - μ ∝ √(v + σ²).
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from diffusers import EDMDPMSolverMultistepScheduler, EDMEulerScheduler
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from torch import nn

from fedsynth.diffusion.ddim import ddim_step
from fedsynth.diffusion.edm import EDMDenoiser
from fedsynth.diffusion.edm_samplers import (
    SOLVERS,
    SamplerSettings,
    denoise_latents,
    euler,
    noise_levels,
    sample_latents,
)
from fedsynth.diffusion.inputs import DiffusionInputError

KINDS = list(SOLVERS)


class ExactDenoiser:
    """E[x_0 | x] of a mixture, every pixel by itself; counts its calls."""

    def __init__(self, weights=(1.0,), means=(0.3,), variances=(0.25,)) -> None:
        self.weights, self.means, self.variances = (
            torch.tensor(v, dtype=torch.float64) for v in (weights, means, variances)
        )
        self.sigmas: list[float] = []

    def __call__(self, x, sigma):
        self.sigmas.append(float(sigma))
        spread = self.variances + sigma.double() ** 2
        offset = x.double().unsqueeze(-1) - self.means
        posterior = torch.softmax(self.weights.log() - 0.5 * (offset**2 / spread + spread.log()), dim=-1)
        return (posterior * (self.means + self.variances / spread * offset)).sum(-1).to(x.dtype)

    def moments(self) -> tuple[float, float]:
        mean = (self.weights * self.means).sum()
        variance = (self.weights * (self.variances + (self.means - mean) ** 2)).sum()
        return mean.item(), variance.item()


def mixture() -> ExactDenoiser:
    return ExactDenoiser((0.3, 0.7), (-0.6, 0.4), (0.02, 0.05))


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(rows: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 1, 2, 2, generator=source(seed), dtype=torch.float64)


def run(denoise, start, batch_size: int = 10**6, **settings):
    return denoise_latents(lambda rows: denoise, start, SamplerSettings(**settings), batch_size=batch_size)


def order(kind: str, coarse: int = 32) -> float:
    """log2 of the error ratio at twice the steps, against the closed form for one Gaussian."""
    errors, (low, high) = [], (0.05, 20.0)
    for steps in (coarse, 2 * coarse):
        x = run(ExactDenoiser(), noise(), kind=kind, num_steps=steps, sigma_min=low, sigma_max=high, rho=7.0,
                final_denoise=False)  # fmt: skip
        exact = 0.3 + (high * noise() - 0.3) * math.sqrt((0.25 + low**2) / (0.25 + high**2))
        errors.append((x - exact).abs().max().item())
    return math.log2(errors[0] / errors[1])


@pytest.mark.parametrize(("kind", "expected"), [("euler", 1), ("heun", 2), ("dpmpp_2m", 2)])
def test_order_of_convergence_on_a_gaussian(kind, expected):
    """The observed order approaches its limit from finite steps; a quarter is allowed."""
    assert order(kind, 64) == pytest.approx(expected, abs=0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_all_solvers_approach_scipys_solution_on_a_mixture(kind):
    """Errors of the ODE's solution at σ_min, started at the same noise; the second order ones are far better."""
    exact, low, high = mixture(), 0.02, 10.0
    start = noise(3)

    def slope(sigma, x):
        flat = torch.from_numpy(x)
        return ((flat - exact(flat, torch.tensor(sigma, dtype=torch.float64))) / sigma).numpy()

    solution = solve_ivp(
        slope, (high, low), (high * start).flatten().numpy(), method="LSODA", rtol=1e-9, atol=1e-11
    )
    reference = torch.from_numpy(solution.y[:, -1]).reshape(start.shape)
    x = run(exact, start, kind=kind, num_steps=300, sigma_min=low, sigma_max=high, final_denoise=False)
    torch.testing.assert_close(x, reference, atol=0.02 if kind == "euler" else 5e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_of_noise_become_quantiles_of_the_mixture(kind):
    """In one dimension the flow keeps ranks: no Monte Carlo error, only discretization and σ_max < ∞."""
    exact = mixture()
    ranks = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    start = torch.special.ndtri(ranks).reshape(-1, 1, 1, 1)
    x = run(exact, start, kind=kind, num_steps=200, sigma_min=0.002, sigma_max=80.0).flatten()
    scaled = (x.unsqueeze(-1) - exact.means) / exact.variances.sqrt()
    cumulative = (exact.weights * torch.special.ndtr(scaled)).sum(-1)
    torch.testing.assert_close(cumulative, ranks, atol=0.02, rtol=0)


@pytest.mark.parametrize(("kind", "num_steps"), [("euler", 60), ("heun", 20), ("dpmpp_2m", 20)])
def test_samples_have_the_moments_of_the_mixture(kind, num_steps):
    """Four standard errors are allowed, and 0.01 of discretization (variances are below 0.3)."""
    exact, rows = mixture(), 4000
    settings = SamplerSettings(kind, num_steps)
    x = sample_latents(lambda rows: exact, rows, (1, 1, 1), settings, generator=source(), batch_size=rows)
    mean, variance = exact.moments()
    assert x.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / rows) + 0.01)
    assert x.var().item() == pytest.approx(variance, abs=4 * variance * math.sqrt(2 / rows) + 0.01)


class SmallNetwork(nn.Module):
    """A smooth F with weights of its own, for comparisons step by step."""

    def forward(self, x, noise, condition):
        return torch.sin(3 * x + noise.reshape(-1, 1, 1, 1)) + 0.2 * x.roll(1, dims=-1)


@pytest.mark.parametrize(
    ("kind", "scheduler_class"), [("euler", EDMEulerScheduler), ("dpmpp_2m", EDMDPMSolverMultistepScheduler)]
)
@pytest.mark.parametrize("num_steps", [2, 8, 20])
def test_samples_equal_those_of_diffusers(kind, scheduler_class, num_steps):
    """diffusers keeps noise levels in float32; the network's slope of about 4 magnifies that."""
    network, start = SmallNetwork(), noise().float()
    scheduler = scheduler_class(sigma_min=0.06, sigma_max=80.0, sigma_data=0.5, rho=7.0)
    scheduler.set_timesteps(num_steps)
    x = 80.0 * start
    for time in scheduler.timesteps:
        scaled = scheduler.scale_model_input(x, time)
        x = scheduler.step(network(scaled, time.expand(len(x)), None), time, x).prev_sample
    denoiser = EDMDenoiser(network)
    ours = run(
        lambda y, sigma: denoiser(y, sigma, None), start, kind=kind, num_steps=num_steps, sigma_min=0.06
    )
    torch.testing.assert_close(ours, x, atol=2e-4, rtol=1e-3)


def test_euler_is_ddim():
    """With x_t = x / √(1 + σ²), ᾱ = 1 / (1 + σ²) and ε̂ = (x - D) / σ."""
    exact, levels = mixture(), [10.0, 3.0, 1.0, 0.2, 0.0]
    x = 10.0 * noise()
    ours, bar = euler(exact, x, levels), lambda s: 1 / (1 + s**2)
    for sigma, next_sigma in pairwise(levels):
        predicted = (x - exact(x, torch.tensor(sigma))) / sigma
        step = ddim_step(x * bar(sigma) ** 0.5, predicted, bar(sigma), bar(next_sigma))
        x = step / bar(next_sigma) ** 0.5
    torch.testing.assert_close(ours, x)


@given(st.integers(2, 60), st.floats(0.001, 0.5), st.floats(1, 200), st.floats(0.5, 10))
def test_levels_fall_strictly_between_their_exact_ends(num_steps, low, high, rho):
    levels = noise_levels(num_steps, low, high, rho)
    assert len(levels) == num_steps
    assert (levels[0], levels[-1]) == (high, low)
    assert all(a > b for a, b in pairwise(levels))


@pytest.mark.parametrize("num_steps", [2, 18, 32])
def test_levels_equal_those_of_diffusers(num_steps):
    scheduler = EDMEulerScheduler(sigma_min=0.002, sigma_max=80.0, rho=7.0)
    scheduler.set_timesteps(num_steps)
    levels = torch.tensor(SamplerSettings(num_steps=num_steps).levels)
    torch.testing.assert_close(levels, scheduler.sigmas, rtol=1e-5, atol=0)


def test_levels_without_bend_are_evenly_spaced():
    assert noise_levels(5, 1.0, 9.0, rho=1.0) == pytest.approx([9, 7, 5, 3, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_final_step_denoises_what_is_returned_without_it(kind):
    exact = mixture()
    settings = {"kind": kind, "num_steps": 8, "sigma_min": 0.06}
    noisy = run(exact, noise(), final_denoise=False, **settings)
    clean = run(exact, noise(), final_denoise=True, **settings)
    torch.testing.assert_close(clean, exact(noisy, torch.tensor(0.06, dtype=torch.float64)), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("final_denoise", [True, False])
@pytest.mark.parametrize("num_steps", [2, 32])
def test_the_denoiser_is_called_as_often_as_the_settings_say(kind, final_denoise, num_steps):
    exact, settings = mixture(), SamplerSettings(kind, num_steps, final_denoise=final_denoise)
    denoise_latents(lambda rows: exact, noise(), settings, batch_size=10)
    assert len(exact.sigmas) == settings.num_calls
    assert min(exact.sigmas) > 0
    assert SamplerSettings("heun", 32).num_calls == 63  # the paper's sampler


def rows_denoiser(conditions: torch.Tensor):
    """Pulls each row towards its own condition, so that mixed up rows would show."""
    return lambda rows: lambda x, sigma: (conditions[rows].reshape(-1, 1, 1, 1) + x / (1 + sigma**2)) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_samples_do_not_depend_on_the_batch_size(kind):
    bind, settings = rows_denoiser(torch.arange(23.0)), SamplerSettings(kind, 5)
    drawn = [
        sample_latents(bind, 23, (2, 3, 3), settings, generator=source(), batch_size=size)
        for size in (23, 1, 7, 100)
    ]
    assert all(torch.equal(drawn[0], other) for other in drawn[1:])


def test_samples_are_a_function_of_the_generator_alone():
    state, settings = torch.get_rng_state(), SamplerSettings("dpmpp_2m", 5)
    first, again, other = (
        sample_latents(lambda rows: mixture(), 3, (1, 2, 2), settings, generator=source(s), batch_size=2)
        for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_is_denoising_of_the_generators_noise(kind):
    start, settings = noise(4, seed=3), SamplerSettings(kind, 4)
    before = start.clone()
    ours = denoise_latents(lambda rows: mixture(), start, settings, batch_size=3)
    drawn = sample_latents(
        lambda rows: mixture(), 4, (1, 2, 2), settings, generator=source(3), batch_size=3, dtype=torch.float64
    )
    assert torch.equal(ours, drawn)
    assert torch.equal(start, before)


def test_progress_counts_every_row_and_step_once():
    seen = []
    settings = SamplerSettings("heun", 6)
    denoise_latents(
        lambda rows: mixture(), noise(7), settings, batch_size=3, progress=lambda *p: seen.append(p)
    )
    assert seen[-1] == (42, 42)
    assert len(seen) == 3 * 6
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_no_rows_give_no_samples():
    drawn = sample_latents(
        lambda rows: mixture(), 0, (4, 7, 7), SamplerSettings(), generator=source(), batch_size=8
    )
    assert drawn.shape == (0, 4, 7, 7)


def test_samples_carry_no_gradient():
    weight = torch.ones((), requires_grad=True)
    settings = SamplerSettings(num_steps=3)
    x = denoise_latents(lambda rows: lambda x, sigma: weight * x, noise(), settings, batch_size=5)
    assert not x.requires_grad


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "ddpm"}, "kind"),
        ({"num_steps": 1}, "num_steps"),
        ({"sigma_min": 0.0}, "sigma_min"),
        ({"sigma_min": 90.0}, "sigma_min"),
        ({"sigma_max": math.inf}, "sigma_min"),
        ({"rho": 0.0}, "rho"),
    ],
)
def test_impossible_settings_are_refused(change, said):
    with pytest.raises(DiffusionInputError, match=said):
        SamplerSettings(**change)


def test_impossible_requests_are_refused():
    settings, bind = SamplerSettings(), lambda rows: mixture()
    with pytest.raises(DiffusionInputError, match="batch_size"):
        denoise_latents(bind, noise(), settings, batch_size=0)
    with pytest.raises(DiffusionInputError, match="noise"):
        denoise_latents(bind, torch.zeros(3, 2), settings, batch_size=1)
    with pytest.raises(DiffusionInputError, match="num_rows"):
        sample_latents(bind, -1, (1, 2, 2), settings, generator=source(), batch_size=1)
    with pytest.raises(DiffusionInputError, match="latent_shape"):
        sample_latents(bind, 3, (1, 0, 2), settings, generator=source(), batch_size=1)
    with pytest.raises(DiffusionInputError, match="num_steps"):
        noise_levels(1, 0.1, 1.0)
