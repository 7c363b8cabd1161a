from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moment_cases import OPTIONS, budget, planted

from fedsynth.errors import PrivacyError
from fedsynth.privacy import PrivacyParameterError, second_moment_sensitivity
from fedsynth.privacy.clipping import clip_to_radius
from fedsynth.prototypes.private_pca import PrivateSubspace, private_subspace
from fedsynth.records import InvalidTensorError


def subspace(
    latents: torch.Tensor, clients: torch.Tensor, epsilon: float = math.inf, seed: int = 0, **changes: Any
) -> PrivateSubspace:
    given = {
        "grid": OPTIONS["grid"], "quantile": 0.8, "slack": 1.2, "num_rounds": 3, "max_rank": 4, "noise_edge": 1.25,
    } | changes  # fmt: skip
    return private_subspace(
        latents, clients, budget(epsilon, seed=seed, num_rounds=given["num_rounds"]), **given
    )


@pytest.mark.parametrize("epsilon", [4.0, 16.0])
def test_a_planted_subspace_is_recovered(epsilon: float) -> None:
    latents, _, clients, directions = planted(20_000)
    found = subspace(latents, clients, epsilon, max_rank=2)
    overlap = torch.linalg.svdvals(found.basis.T @ directions)
    assert float(overlap.min()) > 0.95


def test_later_rounds_find_what_one_round_with_the_whole_share_does_not() -> None:
    latents, _, clients, directions = planted(6_000)

    def captured(num_rounds: int) -> float:
        found = subspace(latents, clients, 1.0, num_rounds=num_rounds)
        return float((directions[:, 1] @ found.basis).norm())

    assert captured(1) < 0.5
    assert captured(2) > 0.9


def test_without_noise_it_is_the_eigendecomposition_of_the_clipped_second_moment() -> None:
    latents, _, clients, _ = planted(500)
    found = subspace(latents, clients)
    clipped = clip_to_radius(latents, float(found.radii[0]))
    values, vectors = torch.linalg.eigh(clipped.T @ clipped / len(clipped))
    torch.testing.assert_close(found.eigenvalues, values.flip(0)[:4])
    overlap = (found.basis * vectors.flip(1)[:, :4]).sum(dim=0).abs()
    torch.testing.assert_close(overlap, torch.ones(4, dtype=torch.float64))


def test_the_basis_is_orthonormal_and_the_rank_bounded() -> None:
    latents, _, clients, _ = planted()
    for rank in (1, 2, 10, 50):
        basis = subspace(latents, clients, max_rank=rank).basis
        assert basis.shape[1] == min(rank, 10)
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64))


def test_the_variance_outside_is_that_of_the_isotropic_rest() -> None:
    latents, _, clients, _ = planted(20_000)
    assert subspace(latents, clients, max_rank=2).residual_variance == pytest.approx(0.02**2, rel=0.3)
    assert subspace(latents, clients, max_rank=10).residual_variance == 0.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5))
def test_no_replacement_moves_a_message_by_more_than_its_sensitivity(seed: int, dim: int) -> None:
    source = torch.Generator().manual_seed(seed)
    latents = torch.randn(8, dim, generator=source, dtype=torch.float64) * 5
    radius = 2.0
    first = clip_to_radius(latents, radius)
    exact = first.T @ first
    for candidate in torch.randn(10, dim, generator=source, dtype=torch.float64) * 5:
        neighbor = latents.clone()
        neighbor[3] = candidate
        other = clip_to_radius(neighbor, radius)
        assert float((other.T @ other - exact).norm()) <= second_moment_sensitivity(radius) * (1 + 1e-12)


def test_a_single_dimension_and_identical_records_have_one_direction() -> None:
    clients = torch.arange(60) % 3
    for latents in (torch.randn(60, 1, generator=torch.Generator().manual_seed(0)), torch.ones(60, 4)):
        found = subspace(latents, clients)
        assert found.basis.shape[1] == 1
        assert found.residual_variance == pytest.approx(0, abs=1e-9)


def test_noise_above_every_direction_is_refused_with_a_remedy() -> None:
    latents = torch.randn(3000, 40, generator=torch.Generator().manual_seed(0))  # no direction stands out
    with pytest.raises(PrivacyError, match="No direction of the latents rises above the noise"):
        subspace(latents, torch.arange(3000) % 3, 0.5)
    with pytest.raises(PrivacyError, match="No direction"):
        subspace(torch.zeros(60, 3), torch.arange(60) % 3)


def test_impossible_arguments_are_refused() -> None:
    latents, _, clients, _ = planted(90)
    with pytest.raises(PrivacyParameterError, match="max_rank"):
        subspace(latents, clients, max_rank=0)
    with pytest.raises(PrivacyParameterError, match="slack"):
        subspace(latents, clients, slack=0.0)
    with pytest.raises(InvalidTensorError, match="NaN"):
        subspace(latents * math.nan, clients)
