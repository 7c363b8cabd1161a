"""Guidance by a second denoiser."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.diffusion.edm_samplers import SamplerSettings, denoise_latents
from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.lerp_guidance import GuidanceSettings, guide, guided_denoiser

CONDITION = torch.tensor([[1.0], [2.0], [3.0]])
KINDS = ["unconditional", "earlier", "both"]


class ConditionDenoiser:
    """Returns x / (1 + σ²) + shift + the condition, and keeps the conditions it was given."""

    def __init__(self, shift: float) -> None:
        self.shift = shift
        self.seen: list[torch.Tensor | None] = []

    def __call__(self, x, sigma, condition):
        self.seen.append(condition)
        added = 0.0 if condition is None else condition.reshape(-1, 1, 1, 1)
        return x / (1 + sigma**2) + self.shift + added


def x(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(seed))


def sample(denoise) -> torch.Tensor:
    return denoise_latents(lambda rows: denoise, x(), SamplerSettings(num_steps=6), batch_size=3)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_one_is_unguided_bit_for_bit_without_calling_the_guide(kind):
    main, other = ConditionDenoiser(0.0), ConditionDenoiser(5.0)
    guided = sample(guided_denoiser(main, other, CONDITION, GuidanceSettings(kind, 1.0)))
    plain = sample(guided_denoiser(ConditionDenoiser(0.0), None, CONDITION, GuidanceSettings()))
    assert torch.equal(guided, plain)
    assert other.seen == []


@pytest.mark.parametrize("kind", KINDS)
def test_weight_zero_is_the_guide_without_calling_the_main_denoiser(kind):
    main, other, sigma = ConditionDenoiser(0.0), ConditionDenoiser(5.0), torch.tensor(2.0)
    value = guided_denoiser(main, other, CONDITION, GuidanceSettings(kind, 0.0))(x(), sigma)
    condition = CONDITION if kind == "earlier" else None
    assert torch.equal(value, ConditionDenoiser(5.0)(x(), sigma, condition))
    assert main.seen == []


@given(st.floats(0, 10), st.integers(0, 100))
def test_a_guide_equal_to_the_main_denoiser_makes_the_weight_irrelevant(weight, seed):
    same = GuidanceSettings("earlier", weight)
    value = guided_denoiser(ConditionDenoiser(1.0), ConditionDenoiser(1.0), CONDITION, same)
    sigma = torch.tensor(0.7)
    assert torch.equal(value(x(seed), sigma), ConditionDenoiser(1.0)(x(seed), sigma, CONDITION))


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 1))
def test_guidance_is_affine_in_the_weight(first, second, share):
    a, b = x(1).double(), x(2).double()
    mixed = guide(a, b, share * first + (1 - share) * second)
    torch.testing.assert_close(mixed, share * guide(a, b, first) + (1 - share) * guide(a, b, second))


def test_weight_two_mirrors_the_guide_at_the_main_denoiser():
    a, b = x(1).double(), x(2).double()
    torch.testing.assert_close(guide(a, b, 2.0), 2 * b - a)


def test_guidance_moves_the_mean_of_gaussians():
    """Denoisers of N(m_g, v) and N(m, v) combine to that of N(m_g + w (m - m_g), v)."""
    v, sigma, y = 0.25, 0.8, x().double()
    denoise = lambda m: m + v / (v + sigma**2) * (y - m)  # noqa: E731
    torch.testing.assert_close(guide(denoise(-1.0), denoise(0.5), 1.4), denoise(-1.0 + 1.4 * 1.5))


@pytest.mark.parametrize(("kind", "sees"), [("unconditional", False), ("earlier", True), ("both", False)])
def test_only_the_earlier_conditional_guide_sees_the_condition(kind, sees):
    main, other = ConditionDenoiser(0.0), ConditionDenoiser(5.0)
    guided_denoiser(main, other, CONDITION, GuidanceSettings(kind, 1.2))(x(), torch.tensor(1.0))
    assert other.seen[0] is (CONDITION if sees else None)
    assert main.seen == [CONDITION]


def test_a_network_with_dropped_conditions_can_guide_itself():
    main = ConditionDenoiser(0.0)
    value = guided_denoiser(main, main, CONDITION, GuidanceSettings("unconditional", 1.5))(
        x(), torch.tensor(1.0)
    )
    torch.testing.assert_close(value, x() / 2 + 1.5 * CONDITION.reshape(-1, 1, 1, 1))


def test_outside_the_interval_nothing_is_guided():
    main, other = ConditionDenoiser(0.0), ConditionDenoiser(5.0)
    settings = GuidanceSettings("earlier", 1.5, interval=(0.1, 2.0))
    denoise = guided_denoiser(main, other, CONDITION, settings)
    for sigma, is_guided in ((0.1, False), (0.11, True), (2.0, True), (2.01, False)):
        other.seen.clear()
        value = denoise(x(), torch.tensor(sigma, dtype=torch.float64))
        expected = ConditionDenoiser(0.0)(x(), sigma, CONDITION)
        assert bool(other.seen) == is_guided
        assert torch.equal(value, expected) != is_guided


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "classifier"}, "kind"),
        ({"kind": "both", "weight": -0.1}, "weight"),
        ({"kind": "both", "weight": math.nan}, "weight"),
        ({"kind": "none", "weight": 1.2}, "kind is none"),
        ({"kind": "both", "weight": 1.2, "interval": (2.0, 2.0)}, "interval"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(DiffusionInputError, match=said):
        GuidanceSettings(**settings)


def test_guides_that_cannot_guide_are_refused():
    main = ConditionDenoiser(0.0)
    with pytest.raises(DiffusionInputError, match="needs a second denoiser"):
        guided_denoiser(main, None, CONDITION, GuidanceSettings("unconditional", 1.2))
    with pytest.raises(DiffusionInputError, match="changes nothing"):
        guided_denoiser(main, main, CONDITION, GuidanceSettings("earlier", 1.2))
    with pytest.raises(DiffusionInputError, match="changes nothing"):
        guided_denoiser(main, main, None, GuidanceSettings("unconditional", 1.2))
    with pytest.raises(DiffusionInputError, match="one noise level"):
        guided_denoiser(main, None, CONDITION, GuidanceSettings())(x(), torch.ones(3))
