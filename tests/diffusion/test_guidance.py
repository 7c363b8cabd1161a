"""Classifier-free guidance, Eq. (28)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.diffusion.guidance import guide, guided_noise
from fedsynth.diffusion.inputs import DiffusionInputError

X, TIME, LABEL = torch.ones(3, 2), torch.tensor(5), torch.tensor([0, 1, 0])


class LabelDenoiser:
    """Predicts the label itself and counts its calls."""

    null_label = 2

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, x, timestep, label):
        self.calls.append(label.tolist())
        return label.to(x.dtype).unsqueeze(1).expand_as(x)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 1))
def test_guidance_is_affine_in_the_scale(first, second, weight):
    u, c = torch.tensor([[1.0, -2.0]]).double(), torch.tensor([[0.5, 4.0]]).double()
    mixed = guide(u, c, weight * first + (1 - weight) * second)
    parts = weight * guide(u, c, first) + (1 - weight) * guide(u, c, second)
    torch.testing.assert_close(mixed, parts)


def test_scale_zero_is_unconditional_one_is_conditional_and_two_mirrors():
    u, c = torch.tensor([[1.0]]), torch.tensor([[4.0]])
    assert [guide(u, c, s).item() for s in (0.0, 1.0, 2.0)] == [1.0, 4.0, 7.0]


def test_guided_noise_combines_the_null_label_with_the_class():
    out = guided_noise(LabelDenoiser(), X, TIME, LABEL, 3.0)
    assert out[:, 0].tolist() == [2 + 3 * (0 - 2), 2 + 3 * (1 - 2), 2 + 3 * (0 - 2)]


@pytest.mark.parametrize(
    ("scale", "calls"), [(1.0, [[0, 1, 0]]), (0.0, [[2, 2, 2]]), (2.0, [[2, 2, 2], [0, 1, 0]])]
)
def test_only_needed_predictions_are_computed(scale, calls):
    denoiser = LabelDenoiser()
    guided_noise(denoiser, X, TIME, LABEL, scale)
    assert denoiser.calls == calls


def test_guidance_is_the_score_of_a_tilted_density():
    """For N(m_c, 1) against N(m_u, 1) at one noise level, guidance moves the mean to m_u + s (m_c - m_u)."""
    x, sigma = torch.linspace(-3, 3, 7).double().unsqueeze(1), 0.8
    noise = lambda mean: (x - mean) * sigma  # noqa: E731
    torch.testing.assert_close(guide(noise(-1.0), noise(2.0), 2.0), noise(5.0))


@pytest.mark.parametrize("scale", [-0.5, math.nan, math.inf])
def test_impossible_scales_are_refused(scale):
    with pytest.raises(DiffusionInputError, match="guidance_scale"):
        guided_noise(LabelDenoiser(), X, TIME, LABEL, scale)
