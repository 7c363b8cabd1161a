from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy.clipping import clip_radius_from_norms, clip_to_radius
from fedsynth.privacy.parameters import PrivacyParameterError
from fedsynth.records import InvalidTensorError


def random_latents(seed, n=20, dim=64, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(n, 1, generator=generator, dtype=dtype) * 3
    return torch.randn(n, dim, generator=generator, dtype=dtype) * scale


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 80),
    st.floats(1e-3, 1e3),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_clipped_norms_never_exceed_the_radius(seed, dim, radius, dtype):
    clipped = clip_to_radius(random_latents(seed, dim=dim, dtype=dtype), radius)
    assert clipped.dtype == torch.float64
    assert bool((torch.linalg.vector_norm(clipped, dim=1) <= radius).all())


def test_clipping_is_the_identity_inside_the_ball():
    latents = random_latents(1)
    inside = torch.linalg.vector_norm(latents, dim=1) <= 8
    assert 0 < int(inside.sum()) < len(latents)
    assert torch.equal(clip_to_radius(latents, 8.0)[inside], latents[inside])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 30))
def test_clipping_twice_changes_nothing(seed, radius):
    once = clip_to_radius(random_latents(seed), radius)
    assert torch.equal(clip_to_radius(once, radius), once)


def test_clipping_keeps_the_direction_and_reaches_the_radius():
    latents = random_latents(2) + 5
    clipped = clip_to_radius(latents, 2.0)
    torch.testing.assert_close(
        torch.linalg.vector_norm(clipped, dim=1), torch.full((20,), 2.0, dtype=torch.float64)
    )
    torch.testing.assert_close(
        torch.nn.functional.cosine_similarity(clipped, latents), torch.ones(20).double()
    )


def test_zero_vector_stays_zero():
    assert torch.equal(clip_to_radius(torch.zeros(2, 3), 1.0), torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "bad", [torch.zeros(3), torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 3), torch.nan)]
)
def test_clipping_refuses_wrong_shapes_integers_and_nan(bad):
    with pytest.raises(InvalidTensorError, match="latents"):
        clip_to_radius(bad, 1.0)


@pytest.mark.parametrize("radius", [0.0, -1.0, float("inf"), float("nan")])
def test_clipping_refuses_a_radius_that_bounds_nothing(radius):
    with pytest.raises(PrivacyParameterError, match="clip_radius"):
        clip_to_radius(torch.zeros(2, 3), radius)


def test_radius_is_the_interpolated_percentile():
    norms = torch.arange(101, dtype=torch.float32)
    assert clip_radius_from_norms(norms, 95) == 95.0
    assert clip_radius_from_norms(norms, 100) == 100.0
    assert clip_radius_from_norms(torch.tensor([1.0, 3.0]), 50) == 2.0


@pytest.mark.parametrize("norms", [torch.zeros(0), torch.tensor([1.0, -1.0]), torch.tensor([1.0, torch.inf])])
def test_radius_refuses_empty_negative_and_infinite_norms(norms):
    with pytest.raises(InvalidTensorError, match="norms"):
        clip_radius_from_norms(norms, 95)


def test_radius_refuses_a_collapsed_encoder():
    with pytest.raises(PrivacyParameterError, match="95th percentile"):
        clip_radius_from_norms(torch.zeros(10), 95)
