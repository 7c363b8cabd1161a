"""EDM's training loss and the uncertainty weighting of EDM2."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsynth.diffusion.edm import edm_scalings
from fedsynth.diffusion.edm_loss import (
    NoiseLevelLaw,
    draw_noise,
    edm_loss,
    edm_loss_of_draws,
    loss_weight,
    weighted_errors,
)
from fedsynth.diffusion.inputs import DiffusionInputError

LAW = NoiseLevelLaw(-0.4, 1.0)


class LinearDenoiser:
    """The best linear denoiser of data with deviation ½; keeps what it was asked."""

    def __call__(self, x, sigma, condition):
        self.sigma, self.condition = sigma, condition
        return edm_scalings(sigma).skip.reshape(-1, 1, 1, 1) * x


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def latents(rows: int = 64) -> torch.Tensor:
    return 0.5 * torch.randn(rows, 2, 4, 4, generator=source(9), dtype=torch.float64)


@pytest.mark.parametrize(("mean", "std"), [(-0.4, 1.0), (-1.2, 1.2)])
def test_logarithms_of_noise_levels_are_normal(mean, std):
    sigma = NoiseLevelLaw(mean, std).draw(20_000, source())
    assert stats.kstest(sigma.log().numpy(), stats.norm(mean, std).cdf).pvalue > 0.01


@given(st.floats(-6, 5).map(math.exp), st.floats(0.1, 3))
def test_the_weight_undoes_the_output_scaling(sigma, sigma_data):
    level = torch.tensor(sigma, dtype=torch.float64)
    assert (
        loss_weight(level, sigma_data) * edm_scalings(level, sigma_data).out ** 2
    ).item() == pytest.approx(1)


@pytest.mark.parametrize("sigma", [0.01, 0.5, 20.0])
def test_the_best_linear_denoiser_has_error_one_at_every_noise_level(sigma):
    """Each of n values is a squared standard normal, so the mean has deviation √(2/n); four are allowed."""
    x0 = latents(2000)
    noise = torch.randn(x0.shape, generator=source(1), dtype=torch.float64)
    levels = torch.full((2000,), sigma, dtype=torch.float64)
    errors = weighted_errors(LinearDenoiser(), x0, None, levels, noise)
    assert errors.mean().item() == pytest.approx(1, abs=4 * math.sqrt(2 / x0.numel()))


def test_loss_is_the_mean_of_the_weighted_errors_of_its_own_draws():
    x0, stream = latents(), source()
    loss = edm_loss(LinearDenoiser(), x0, None, law=LAW, generator=source())
    sigma = LAW.draw(len(x0), stream)
    noise = torch.randn(x0.shape, generator=stream, dtype=torch.float64)
    by_hand = 0.0
    for row, level in enumerate(sigma.tolist()):
        skip = 0.25 / (level**2 + 0.25)
        error = skip * (x0[row] + level * noise[row]) - x0[row]
        by_hand += (level**2 + 0.25) / (level * 0.5) ** 2 * error.square().mean().item() / len(x0)
    assert loss.item() == pytest.approx(by_hand, rel=1e-12)


def test_the_best_uncertainty_is_the_logarithm_of_the_error():
    """d/du (e / exp(u) + u) vanishes at u = ln e; there the value is 1 + ln e."""
    x0 = latents()
    plain = edm_loss(LinearDenoiser(), x0, None, law=LAW, generator=source())
    u = plain.log().clone().requires_grad_()
    loss = edm_loss(
        LinearDenoiser(), x0, None, law=LAW, generator=source(), uncertainty=lambda s: u.expand(len(s))
    )
    loss.backward()
    assert loss.item() == pytest.approx(1 + math.log(plain.item()))
    assert u.grad is not None
    assert u.grad.item() == pytest.approx(0, abs=1e-12)


def test_no_uncertainty_is_uncertainty_zero():
    args = {"law": LAW, "condition": None}
    plain = edm_loss(LinearDenoiser(), latents(), generator=source(), **args)
    zero = edm_loss(LinearDenoiser(), latents(), generator=source(), uncertainty=torch.zeros_like, **args)
    torch.testing.assert_close(plain, zero)


def test_dropped_conditions_are_zero_and_the_others_untouched():
    """The number dropped is binomial; five standard deviations are allowed."""
    denoiser, condition = LinearDenoiser(), torch.rand(1000, 3) + 1
    before = condition.clone()
    edm_loss(denoiser, latents(1000), condition, law=LAW, generator=source(), condition_dropout=0.15)
    is_dropped = (denoiser.condition == 0).all(1)
    assert torch.equal(denoiser.condition[~is_dropped], before[~is_dropped])
    assert abs(int(is_dropped.sum()) - 150) < 5 * math.sqrt(1000 * 0.15 * 0.85)
    assert torch.equal(condition, before)


@pytest.mark.parametrize(("dropout", "kept"), [(0.0, True), (1.0, False)])
def test_dropout_of_none_and_of_all(dropout, kept):
    denoiser, condition = LinearDenoiser(), torch.ones(8, 3)
    edm_loss(denoiser, latents(8), condition, law=LAW, generator=source(), condition_dropout=dropout)
    assert torch.equal(denoiser.condition, condition * kept)


@pytest.mark.parametrize("sizes", [[8], [4, 4], [3, 3, 2], [1] * 8])
def test_parts_of_a_step_have_the_loss_and_the_conditions_of_the_whole(sizes):
    x0, condition, seen = latents(8), torch.rand(8, 3) + 1, []
    draws = draw_noise(x0.shape, law=LAW, generator=source(), condition_dropout=0.4, dtype=x0.dtype)
    whole = LinearDenoiser()
    loss = edm_loss(whole, x0, condition, law=LAW, generator=source(), condition_dropout=0.4)
    total, start = 0.0, 0
    for size in sizes:
        part, rows = LinearDenoiser(), slice(start, start + size)
        one = edm_loss_of_draws(part, x0[rows], condition[rows], draws=draws.rows(start, size))
        total, start = total + one.item() * size / 8, start + size
        seen.append(part.condition)
    assert total == pytest.approx(loss.item(), rel=1e-12)
    assert torch.equal(torch.cat(seen), whole.condition)
    assert 0 < int((whole.condition == 0).all(1).sum()) < 8


def test_loss_is_a_function_of_the_generator_alone():
    state = torch.get_rng_state()
    first, again, other = (
        edm_loss(LinearDenoiser(), latents(), None, law=LAW, generator=source(s)).item() for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again != other


@pytest.mark.parametrize(("mean", "std"), [(math.nan, 1.0), (0.0, -1.0), (0.0, math.inf)])
def test_impossible_laws_are_refused(mean, std):
    with pytest.raises(DiffusionInputError, match="finite mean"):
        NoiseLevelLaw(mean, std)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x0": torch.zeros(4, 2)}, "x0"),
        ({"condition_dropout": 1.5, "condition": torch.ones(8, 3)}, "condition_dropout"),
        ({"condition_dropout": 0.1}, "no condition"),
        ({"condition": torch.ones(7, 3)}, "8 rows"),
        ({"uncertainty": lambda s: s.unsqueeze(1)}, "one number a row"),
        ({"sigma_data": 0.0}, "sigma_data"),
    ],
)
def test_wrong_requests_are_refused(change, said):
    given = {"x0": latents(8), "condition": None, "law": LAW, "generator": source()} | change
    with pytest.raises(DiffusionInputError, match=said):
        edm_loss(LinearDenoiser(), **given)


def test_noise_of_another_shape_is_refused():
    with pytest.raises(DiffusionInputError, match="noise must match"):
        weighted_errors(LinearDenoiser(), latents(2), None, torch.ones(2), torch.zeros(2, 2, 4, 5))
