from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from moment_cases import planted, released

from fedsynth.privacy import PrivacyParameterError
from fedsynth.prototypes import MomentRelease, mixture_from_moments, sample_mixture
from fedsynth.prototypes.moment_mixture import pooled_moments, shrink_covariances


def release(epsilon: float = math.inf, size: int = 6000, **changes: object) -> MomentRelease:
    latents, labels, clients, _ = planted(size)
    return released(latents, labels, clients, epsilon, **changes).release  # type: ignore[arg-type]


def test_without_noise_samples_have_the_moments_of_the_records() -> None:
    latents, labels, clients, _ = planted(20_000)
    wide = {"radius_quantile": 0.99, "radius_slack": 2.0, "clip_factor": 20.0, "num_components": 4}
    mixture = mixture_from_moments(released(latents, labels, clients, **wide).release)
    synthetic, drawn = sample_mixture(mixture, 20_000, torch.Generator().manual_seed(0))
    for label in (0, 1):
        own, made = latents[labels == label], synthetic[drawn == label]
        torch.testing.assert_close(made.mean(0), own.mean(0), rtol=0, atol=0.06)
        torch.testing.assert_close(torch.cov(made.T), torch.cov(own.T), rtol=0.1, atol=0.05)


@pytest.mark.parametrize("epsilon", [4.0, 16.0])
def test_with_noise_samples_keep_class_means_and_the_thin_directions(epsilon: float) -> None:
    latents, labels, clients, directions = planted(20_000)
    mixture = mixture_from_moments(released(latents, labels, clients, epsilon).release)
    synthetic, drawn = sample_mixture(mixture, 5_000, torch.Generator().manual_seed(0))
    for label, place in ((0, -3.0), (1, 6.0)):
        made = synthetic[drawn == label]
        assert float((made @ directions[:, 0]).abs().mean()) == pytest.approx(abs(place), abs=1.0)
        outside = made - made @ directions @ directions.T
        assert float(outside.std()) < 0.1  # not the deviation of 5 that noise in raw axes would give


def test_pooled_covariance_is_unbiased_although_the_mean_is_noisy() -> None:
    exact = release(num_components=1)
    wanted = pooled_moments(exact)[2]
    source, found = torch.Generator().manual_seed(1), []
    for _ in range(2000):
        sums = exact.sums + 40.0 * torch.randn(exact.sums.shape, generator=source, dtype=torch.float64)
        found.append(pooled_moments(replace(exact, sums=sums, sum_std=40.0))[2])
    draws = torch.stack(found)
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert bool(((draws.mean(dim=0) - wanted).abs() < 4.5 * error + 1e-9).all())
    # What would be left without the correction: K σ² / N² on the diagonal.
    inflation = 3 * 40.0**2 / float(pooled_moments(exact)[0][0]) ** 2
    assert inflation > 10 * float(error[0].diagonal().max())


def test_clients_that_sit_out_do_not_count() -> None:
    whole = release()
    participates = torch.tensor([[True, True], [False, False], [True, True]])
    without = replace(whole, participates=participates)
    changed = replace(without, sums=whole.sums + torch.tensor([0.0, 9e9, 0.0])[:, None, None])
    for first, second in zip(pooled_moments(without), pooled_moments(changed), strict=True):
        assert torch.equal(first, second)


def test_the_order_of_clients_does_not_matter() -> None:
    whole, order = release(8.0), torch.tensor([2, 0, 1])
    moved = replace(
        whole, participates=whole.participates[order], counts=whole.counts[order], sums=whole.sums[order],
        second_moments=whole.second_moments[order], class_counts=whole.class_counts[order],
    )  # fmt: skip
    first, second = mixture_from_moments(whole).to_tensors(), mixture_from_moments(moved).to_tensors()
    torch.testing.assert_close(first["means"], second["means"])
    covariances = [tensors["factors"] @ tensors["factors"].mT for tensors in (first, second)]
    torch.testing.assert_close(*covariances)


def test_a_class_with_fewer_cells_gets_empty_components() -> None:
    latents, labels, clients, _ = planted(4000)
    keep = (labels == 0) | (torch.arange(4000) < 160)
    mixture = mixture_from_moments(
        released(latents[keep], labels[keep], clients[keep], num_components=4).release
    )
    assert mixture.weights.shape == (2, 4)
    assert (mixture.weights > 0).sum(dim=1).tolist() == [4, 1]
    torch.testing.assert_close(mixture.weights.sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_the_floor_holds_in_every_direction() -> None:
    mixture = mixture_from_moments(release(), floor=0.5)
    assert mixture.factors is not None
    for factor, variance in zip(mixture.factors[0], mixture.variances[0], strict=True):
        values = torch.linalg.eigvalsh(torch.diag(variance) + factor @ factor.T)
        assert float(values.min()) >= 0.5 * (1 - 1e-9)
    for floor in (0.0, -1.0, math.inf):
        with pytest.raises(PrivacyParameterError, match="floor"):
            mixture_from_moments(release(), floor=floor)


def test_covariances_are_shrunk_by_their_share_of_noise() -> None:
    counts = torch.ones(2, dtype=torch.float64)
    own = torch.stack([torch.diag(torch.tensor([4.0, 1.0])), torch.diag(torch.tensor([2.0, 3.0]))]).double()
    assert torch.allclose(shrink_covariances(own, counts, torch.zeros(2).double()), own)
    pooled = own.mean(dim=0)
    drowned = shrink_covariances(own, counts, torch.full((2,), 1e6).double())
    assert torch.allclose(drowned, pooled.expand(2, 2, 2))
    # ‖own - pooled‖² = 2; noise σ² · 2 · 3 / 2 = 1 is half of it.
    half = shrink_covariances(own, counts, torch.full((2,), math.sqrt(1 / 3)).double())
    assert torch.allclose(half, (own + pooled) / 2)


def test_indefinite_covariances_become_positive() -> None:
    noisy = torch.tensor([[[1.0, 5.0], [5.0, 1.0]]]).double()
    values = torch.linalg.eigvalsh(shrink_covariances(noisy, torch.ones(1).double(), torch.zeros(1).double()))
    torch.testing.assert_close(values, torch.tensor([[1e-3, 6.0]]).double())
