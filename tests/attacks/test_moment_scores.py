"""Attacks on published variances and second moments."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal

from fedsynth.attacks import Candidates, ReleasedMeans, ReleasedSecondMoments
from fedsynth.attacks.moment_scores import second_moment_filter, variance_likelihood_ratio
from fedsynth.attacks.population_scores import population_of
from fedsynth.attacks.repetitions import auroc_rows
from fedsynth.evaluation import EvaluationError

DIM, NUM, SHARD = 6, 80, 20


def _latents(seed: int = 0) -> torch.Tensor:
    return torch.randn(NUM, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 2


def _cell(latents: torch.Tensor) -> Candidates:
    return Candidates(latents, torch.ones(len(latents)).long(), torch.zeros(len(latents)).long())


def _released(latents: torch.Tensor, noise: float = 0.0, seed: int = 1) -> ReleasedMeans:
    """Two shards of the first and second SHARD records, noise on the means alone."""
    shards = latents[: 2 * SHARD].view(2, SHARD, DIM)
    drawn = torch.randn(2, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ReleasedMeans(
        shards.mean(dim=1) + noise * drawn,
        torch.full((2,), noise, dtype=torch.float64),
        torch.tensor([SHARD, SHARD]),
        torch.tensor([1, 1]),
        torch.tensor([0, 0]),
        variances=shards.var(dim=1, correction=0),
    )


def _own() -> torch.Tensor:
    return torch.arange(NUM) // SHARD % 2


IS_MEMBER = torch.arange(NUM) < 2 * SHARD


def test_noise_on_the_means_does_not_weaken_the_attack_on_exact_variances():
    latents = _latents()
    population = population_of(_cell(latents))
    exact, noisy = (
        variance_likelihood_ratio(_cell(latents), _own(), _released(latents, noise), population)
        for noise in (0.0, 1e6)
    )
    assert torch.equal(exact, noisy)


def test_exact_variances_give_members_away():
    found = []
    for seed in range(30):
        latents = _latents(seed)
        scores = variance_likelihood_ratio(
            _cell(latents), _own(), _released(latents), population_of(_cell(latents))
        )
        found.append(float(auroc_rows(scores.unsqueeze(0), IS_MEMBER)))
    mean = torch.tensor(found)
    assert float(mean.mean() - 4 * mean.std() / 30**0.5) > 0.55


def test_variances_of_other_records_give_nothing_away():
    found = []
    for seed in range(30):
        latents = _latents(seed)
        fresh = _released(_latents(seed + 1000))
        scores = variance_likelihood_ratio(_cell(latents), _own(), fresh, population_of(_cell(latents)))
        found.append(float(auroc_rows(scores.unsqueeze(0), IS_MEMBER)))
    mean = torch.tensor(found)
    assert abs(float(mean.mean()) - 0.5) < 4 * float(mean.std()) / 30**0.5


def test_the_variance_ratio_is_that_of_gaussian_means_of_squares():
    latents = _latents(2)
    released = _released(latents)
    squares = ((latents - latents.mean(dim=0)) / latents.std(dim=0, correction=0)).square()
    center, covariance = squares.mean(dim=0), torch.cov(squares.T)
    point = released.variances[0] * SHARD / (SHARD - 1) / latents.var(dim=0, correction=0)
    candidate, others = squares[3] - center, NUM - 1
    share = 1 - (SHARD - 1) / others
    inside = MultivariateNormal(
        center + candidate * share / SHARD, covariance * (SHARD - 1) / SHARD**2 * share
    )
    outside = MultivariateNormal(center - candidate / others, covariance / SHARD * (1 - SHARD / others))
    wanted = float(inside.log_prob(point) - outside.log_prob(point))
    found = variance_likelihood_ratio(_cell(latents), _own(), released, population_of(_cell(latents)))
    assert float(found[3]) == pytest.approx(wanted, rel=1e-8)


def test_shards_of_one_record_have_no_variance_to_attack():
    latents = _latents()
    released = _released(latents)._replace(counts=torch.tensor([1, 1]))
    scores = variance_likelihood_ratio(_cell(latents), _own(), released, population_of(_cell(latents)))
    assert float(scores.abs().max()) == 0


def test_an_unknown_shard_weakens_the_attack_on_variances():
    known, unknown = [], []
    for seed in range(30):
        latents = _latents(seed)
        population, released = population_of(_cell(latents)), _released(latents)
        for own, found in ((_own(), known), (None, unknown)):
            scores = variance_likelihood_ratio(_cell(latents), own, released, population)
            found.append(float(auroc_rows(scores.unsqueeze(0), IS_MEMBER)))
    assert sum(known) > sum(unknown) + 30 * 0.01


def test_a_release_without_variances_is_refused():
    latents = _latents()
    released = _released(latents)._replace(variances=None)
    with pytest.raises(EvaluationError, match="publishes no variances"):
        variance_likelihood_ratio(_cell(latents), None, released, population_of(_cell(latents)))


def _moments(latents: torch.Tensor, noise: float) -> ReleasedSecondMoments:
    members = latents[: 2 * SHARD]
    drawn = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    exact = members.T @ members / len(members)
    one = torch.tensor([2 * SHARD])
    return ReleasedSecondMoments(
        (exact + noise * drawn).unsqueeze(0),
        torch.tensor([noise], dtype=torch.float64),
        one,
        torch.tensor([1]),
        torch.tensor([0]),
    )


def test_the_second_moment_filter_is_the_inner_product_of_outer_products():
    latents = _latents(5)
    released = _moments(latents, 0.5)
    expected = latents.T @ latents / NUM
    wanted = [
        float(((torch.outer(h, h) - expected) * (released.moments[0] - expected)).sum()) * 2 * SHARD / 0.5
        for h in latents
    ]
    found = second_moment_filter(_cell(latents), released, population_of(_cell(latents)))
    assert found.tolist() == pytest.approx(wanted, rel=1e-9)


def test_exact_second_moments_give_members_away_and_noise_hides_them():
    exact, noisy = [], []
    for seed in range(30):
        latents = _latents(seed)
        for noise, found in ((0.0, exact), (1e4, noisy)):
            scores = second_moment_filter(
                _cell(latents), _moments(latents, noise), population_of(_cell(latents))
            )
            found.append(float(auroc_rows(scores.unsqueeze(0), IS_MEMBER)))
    assert sum(exact) / 30 > 0.53
    assert abs(sum(noisy) / 30 - 0.5) < 0.05


def test_second_moments_of_other_clients_are_ignored():
    latents = _latents()
    elsewhere = _moments(latents, 1.0)._replace(clients=torch.tensor([3]))
    scores = second_moment_filter(_cell(latents), elsewhere, population_of(_cell(latents)))
    assert float(scores.abs().max()) == 0
