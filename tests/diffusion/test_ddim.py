"""DDIM, Eq. (29): diffusers as reference, and a Gaussian mixture whose optimal noise prediction is known.

If x_0 follows Σ π_k N(μ_k, diag v_k), then x_t follows Σ π_k N(√ᾱ μ_k, diag(ᾱ v_k + 1 - ᾱ)), and the best
prediction of the noise is ε*(x, t) = -√(1 - ᾱ_t) ∇ log p_t(x).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from diffusers import DDIMScheduler
from torch import Tensor

from fedsynth.diffusion.ddim import ddim_step, ddim_timesteps, denoise_ddim, predict_x0, sample_ddim
from fedsynth.diffusion.ddpm import add_noise, noise_prediction_loss
from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.schedule import NoiseSchedule, cosine_schedule, linear_schedule
from fedsynth.models.denoiser import LatentDenoiser

SCHEDULE = linear_schedule()


@dataclass
class MixtureDenoiser:
    """ε* of one Gaussian mixture a class."""

    schedule: NoiseSchedule
    weights: Tensor  # [class, component]
    means: Tensor  # [class, component, dim]
    variances: Tensor  # [class, component, dim]
    null_label: int = 2

    def __call__(self, x: Tensor, timestep: Tensor, label: Tensor) -> Tensor:
        alpha_bar = self.schedule.alpha_bar[timestep].to(x.dtype).reshape(-1, 1, 1)
        centers = alpha_bar.sqrt() * self.means.to(x.dtype)[label]  # [n, component, dim]
        spread = alpha_bar * self.variances.to(x.dtype)[label] + 1 - alpha_bar
        offset = (x.unsqueeze(1) - centers) / spread
        log_density = -0.5 * ((x.unsqueeze(1) - centers) * offset + spread.log()).sum(-1)
        posterior = torch.softmax(self.weights.to(x.dtype)[label].log() + log_density, dim=1)
        return (1 - alpha_bar[:, 0]).sqrt() * (posterior.unsqueeze(-1) * offset).sum(1)

    def moments(self, label: int) -> tuple[Tensor, Tensor]:
        """Mean and variance of one class, by the law of total variance."""
        weights = self.weights[label].unsqueeze(-1)
        mean = (weights * self.means[label]).sum(0)
        return mean, (weights * (self.variances[label] + (self.means[label] - mean) ** 2)).sum(0)


def mixture(schedule: NoiseSchedule = SCHEDULE) -> MixtureDenoiser:
    return MixtureDenoiser(
        schedule,
        weights=torch.tensor([[0.3, 0.7], [0.5, 0.5]]).double(),
        means=torch.tensor([[[-1.0, 0.5], [0.5, -0.3]], [[1.0, 1.0], [-1.0, -1.0]]]).double(),
        variances=torch.tensor([[[0.1, 0.3], [0.2, 0.1]], [[0.05, 0.4], [0.1, 0.1]]]).double(),
    )


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(denoiser, labels, seed: int = 0, **changes):
    given = {
        "schedule": SCHEDULE,
        "num_steps": 10,
        "guidance_scale": 1.0,
        "dim": 2,
        "generator": source(seed),
        "batch_size": 10**6,
    }
    return sample_ddim(denoiser, labels, **(given | changes))


def small_denoiser(dim: int = 2) -> LatentDenoiser:
    torch.manual_seed(0)
    denoiser = LatentDenoiser(dim, width=32, num_blocks=1, time_embedding_dim=16)
    torch.nn.init.normal_(denoiser.output_layer[-1].weight, std=0.1)
    return denoiser


@pytest.mark.parametrize(
    ("spacing", "num_steps"),
    [("leading", 1), ("leading", 7), ("leading", 50), ("leading", 1000), ("trailing", 1), ("trailing", 50)],
)
def test_steps_equal_those_of_diffusers(spacing, num_steps):
    """Only evenly spaced timesteps are compared: for others diffusers goes to the wrong one (#12633)."""
    scheduler = DDIMScheduler(
        1000, beta_start=1e-4, beta_end=0.02, clip_sample=False, timestep_spacing=spacing
    )
    scheduler.set_timesteps(num_steps)
    timesteps = ddim_timesteps(1000, num_steps, spacing)
    assert timesteps == scheduler.timesteps.tolist()
    alpha_bars = [*SCHEDULE.alpha_bar[timesteps].tolist(), 1.0]
    ours = reference = torch.randn(4, 3, generator=source(), dtype=torch.float64)
    for index, timestep in enumerate(timesteps):
        noise = torch.randn(4, 3, generator=source(index), dtype=torch.float64)
        ours = ddim_step(ours, noise, alpha_bars[index], alpha_bars[index + 1])
        reference = scheduler.step(noise, timestep, reference).prev_sample
    # diffusers multiplies 1000 factors 1 - β in float32, so its ᾱ_T is off by some 1e-5 of itself.
    torch.testing.assert_close(ours, reference, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("spacing", ["leading", "trailing"])
def test_timesteps_fall_strictly_and_are_as_many_as_asked(spacing):
    for num_steps in range(1, 301):
        timesteps = ddim_timesteps(300, num_steps, spacing)
        assert len(timesteps) == num_steps
        assert all(a > b for a, b in pairwise(timesteps))
        assert 0 <= timesteps[-1] <= timesteps[0] < 300
        assert (timesteps[-1] == 0) if spacing == "leading" else (timesteps[0] == 299)


@pytest.mark.parametrize("t", [0, 500, 999])
def test_x0_is_recovered_from_its_own_noise_at_any_timestep(t):
    x0, noise = (torch.randn(9, 2, generator=source(seed), dtype=torch.float64) for seed in (0, 1))
    x_t = add_noise(x0, noise, torch.full((9,), t), SCHEDULE)
    torch.testing.assert_close(predict_x0(x_t, noise, float(SCHEDULE.alpha_bar[t])), x0)


def test_a_step_with_the_true_noise_lands_on_the_forward_process():
    """From x_600 with the noise that made it, Eq. (29) leads to Eq. (26) at 300."""
    x0, noise = (torch.randn(9, 2, generator=source(seed), dtype=torch.float64) for seed in (0, 1))
    x_600, x_300 = (add_noise(x0, noise, torch.full((9,), t), SCHEDULE) for t in (600, 300))
    alpha_bar, previous = (float(SCHEDULE.alpha_bar[t]) for t in (600, 300))
    torch.testing.assert_close(ddim_step(x_600, noise, alpha_bar, previous), x_300)


@pytest.mark.parametrize("schedule", [SCHEDULE, cosine_schedule()], ids=["linear", "cosine"])
@pytest.mark.parametrize("label", [0, 1])
def test_exact_noise_prediction_returns_the_mixture(schedule, label):
    """In one dimension normal quantiles become the mixture's: no Monte Carlo error, only discretization."""
    exact = mixture(schedule)
    exact.means, exact.variances = exact.means[..., :1], exact.variances[..., :1]
    ranks = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    x = denoise_ddim(
        exact,
        torch.special.ndtri(ranks).unsqueeze(1),
        torch.full((2000,), label),
        schedule=schedule,
        num_steps=500,
        guidance_scale=1.0,
        batch_size=2000,
        spacing="trailing",
    )
    mean, variance = exact.moments(label)
    torch.testing.assert_close(x.mean(0), mean, atol=0.01, rtol=0)
    torch.testing.assert_close(x.var(0, correction=0), variance, atol=0.02, rtol=0)
    scaled = (x - exact.means[label, :, 0]) / exact.variances[label, :, 0].sqrt()  # [n, component]
    cumulative = (exact.weights[label] * torch.special.ndtr(scaled)).sum(1)
    torch.testing.assert_close(cumulative, ranks, atol=0.01, rtol=0)


@pytest.mark.parametrize("label", [0, 1])
def test_samples_have_the_moments_of_a_two_dimensional_mixture(label):
    """Four standard errors are allowed, and 0.01 of discretization."""
    exact, n = mixture(), 4000
    x = sample(exact, torch.full((n,), label), num_steps=200, spacing="trailing").double()
    mean, variance = exact.moments(label)
    assert ((x.mean(0) - mean).abs() < 4 * (variance / n).sqrt() + 0.01).all()
    assert ((x.var(0) - variance).abs() < 4 * variance * (2 / n) ** 0.5 + 0.01).all()


def test_one_gaussian_is_transported_by_its_closed_form():
    """For N(μ, v) each DDIM trajectory keeps its quantile: x_0 = μ + √v x_T in the limit of small steps."""
    one = mixture()
    one.weights, one.means, one.variances = one.weights[:, :1] * 0 + 1, one.means[:, :1], one.variances[:, :1]
    labels = torch.zeros(200, dtype=torch.int64)
    x = sample(one, labels, num_steps=1000, spacing="trailing", dtype=torch.float64)
    start = torch.randn(200, 2, generator=source(), dtype=torch.float64)
    expected = one.means[0, 0] + one.variances[0, 0].sqrt() * start
    torch.testing.assert_close(x, expected, atol=0.03, rtol=0)


def test_training_brings_the_denoiser_close_to_the_exact_noise_prediction():
    exact = mixture()
    torch.manual_seed(0)
    denoiser, draws = LatentDenoiser(2, width=64, num_blocks=2, time_embedding_dim=32), source()
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=3e-3)

    def batch(size: int):
        label = torch.randint(2, (size,), generator=draws)
        component = torch.multinomial(exact.weights[label], 1, generator=draws).squeeze(1)
        spread = exact.variances[label, component].sqrt()
        noise = torch.randn(size, 2, generator=draws, dtype=torch.float64)
        return (exact.means[label, component] + spread * noise).float(), label

    x0, label = batch(4000)
    timestep = torch.randint(1000, (4000,), generator=draws)
    x_t = add_noise(x0, torch.randn(4000, 2, generator=draws), timestep, SCHEDULE)

    @torch.no_grad()
    def distance() -> float:
        return (denoiser(x_t, timestep, label) - exact(x_t, timestep, label)).square().mean().item()

    untrained = distance()
    for _ in range(300):
        optimizer.zero_grad()
        noise_prediction_loss(denoiser, *batch(256), SCHEDULE, 0.1, draws).backward()
        optimizer.step()
    assert distance() < untrained / 10


@pytest.mark.parametrize("guidance_scale", [0.0, 1.0, 2.0])
def test_samples_do_not_depend_on_the_batch_size(guidance_scale):
    labels = torch.arange(23) % 2
    whole = sample(small_denoiser(), labels, guidance_scale=guidance_scale)
    for batch_size in (1, 7, 23):
        parts = sample(small_denoiser(), labels, guidance_scale=guidance_scale, batch_size=batch_size)
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)


def test_samples_are_a_function_of_the_generator_alone():
    labels = torch.zeros(5, dtype=torch.int64)
    state = torch.get_rng_state()
    denoiser = mixture()
    first = sample(denoiser, labels, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(sample(denoiser, labels, seed=1), first)
    assert not torch.equal(sample(denoiser, labels, seed=2), first)


def test_scale_zero_ignores_the_labels():
    ones = sample(small_denoiser(), torch.ones(5, dtype=torch.int64), guidance_scale=0.0)
    zeros = sample(small_denoiser(), torch.zeros(5, dtype=torch.int64), guidance_scale=0.0)
    assert torch.equal(ones, zeros)
    guided = sample(small_denoiser(), torch.zeros(5, dtype=torch.int64), guidance_scale=2.0)
    assert not torch.allclose(guided, zeros)


def test_sampling_is_denoising_of_the_generators_noise():
    labels = torch.arange(5) % 2
    noise = torch.randn(5, 2, generator=source(4))
    before = noise.clone()
    x = denoise_ddim(
        small_denoiser(), noise, labels, schedule=SCHEDULE, num_steps=10, guidance_scale=2.0, batch_size=3
    )
    assert torch.equal(x, sample(small_denoiser(), labels, seed=4, guidance_scale=2.0, batch_size=3))
    assert torch.equal(noise, before)


def test_progress_counts_every_row_and_step_once():
    seen = []
    sample(mixture(), torch.zeros(7, dtype=torch.int64), batch_size=3, progress=lambda *p: seen.append(p))
    assert seen[-1] == (70, 70)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert len(seen) == 3 * 10


def test_no_labels_give_no_samples():
    assert sample(small_denoiser(), torch.zeros(0, dtype=torch.int64)).shape == (0, 2)


def test_samples_carry_no_gradient_and_the_type_asked_for():
    x = sample(small_denoiser().double(), torch.zeros(3, dtype=torch.int64), dtype=torch.float64)
    assert not x.requires_grad
    assert x.dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": torch.zeros(3)}, "int64"),
        ({"labels": torch.tensor(0)}, "vector"),
        ({"labels": torch.tensor([0, 3])}, "0, 2"),
        ({"labels": torch.tensor([0, -1])}, "0, 2"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 1001}, "num_steps"),
        ({"guidance_scale": -1.0}, "guidance_scale"),
        ({"dim": 0}, "dim must"),
        ({"batch_size": 0}, "batch_size"),
        ({"spacing": "linspace"}, "spacing"),
        ({"denoiser": torch.nn.Identity()}, "null_label"),
    ],
)
def test_impossible_requests_are_refused(change, said):
    given = {"denoiser": small_denoiser(), "labels": torch.zeros(3, dtype=torch.int64)} | change
    with pytest.raises(DiffusionInputError, match=said):
        sample(**given)
