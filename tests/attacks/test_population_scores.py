"""Adversaries who know the population: enumeration, distributions, the exact replace-one test."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
import torch

from fedsynth.attacks import Candidates, ReleasedMeans
from fedsynth.attacks.mean_ratio import mean_likelihood_ratio
from fedsynth.attacks.population_scores import (
    informed_scores,
    moments_of,
    population_of,
    population_scores,
)
from fedsynth.attacks.repetitions import auroc_rows

DIM = 5


def _points(n: int, seed: int, d: int = DIM) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _cell(latents: torch.Tensor, client: int = 2, label: int = 1) -> Candidates:
    count = len(latents)
    return Candidates(latents, torch.full((count,), label), torch.full((count,), client))


def _released(means: torch.Tensor, noise: float, counts: list[int]) -> ReleasedMeans:
    size = len(means)
    return ReleasedMeans(
        means,
        torch.full((size,), noise, dtype=torch.float64),
        torch.tensor(counts),
        torch.ones(size, dtype=torch.int64),
        torch.full((size,), 2),
    )


def test_the_two_hypotheses_have_the_means_of_all_subsets():
    population = torch.tensor([-3.0, -1.0, 0.0, 1.5, 2.5], dtype=torch.float64)
    population -= population.mean()
    size, n, variance = 5, 3, float(population.var())
    for h in population.tolist():
        subsets = list(itertools.combinations(population.tolist(), n))
        inside = [sum(subset) / n for subset in subsets if h in subset]
        outside = [sum(subset) / n for subset in subsets if h not in subset]
        in_var = variance * (n - 1) / n**2 * (1 - (n - 1) / (size - 1)) + 0.04
        out_var = variance / n * (1 - n / (size - 1)) + 0.04
        point = torch.tensor(0.7, dtype=torch.float64)
        wanted = NormalDist(sum(inside) / len(inside), in_var**0.5).pdf(0.7)
        wanted /= NormalDist(sum(outside) / len(outside), out_var**0.5).pdf(0.7)
        found = mean_likelihood_ratio(
            torch.tensor([[h]], dtype=torch.float64),
            point.view(1, 1),
            torch.tensor([float(n)], dtype=torch.float64),
            torch.tensor([0.2], dtype=torch.float64),
            torch.tensor([variance], dtype=torch.float64),
            population_size=size,
        )
        assert float(found) == pytest.approx(math.log(wanted), rel=1e-10)


def test_the_two_hypotheses_have_the_variances_of_all_subsets_on_average():
    population = _points(7, 0, 1)[:, 0]
    size, n = 7, 3
    inside, outside = [], []
    for index in range(size):
        for subset in itertools.combinations(range(size), n):
            (inside if index in subset else outside).append((index, float(population[list(subset)].mean())))

    def mean_variance(draws: list[tuple[int, float]]) -> float:
        groups = [torch.tensor([m for i, m in draws if i == k]) for k in range(size)]
        return float(torch.stack([group.var(correction=0) for group in groups]).mean())

    # Leaving h out of the pool changes its variance; over all h that averages to a factor N (N-2) / (N-1)^2 ...
    variance = float(population.var())
    pool = torch.stack([torch.cat([population[:k], population[k + 1 :]]).var() for k in range(size)]).mean()
    assert float(pool) == pytest.approx(variance, rel=1e-9)  # ... of the biased, hence 1 of the unbiased one
    assert mean_variance(inside) == pytest.approx(
        variance * (n - 1) / n**2 * (1 - (n - 1) / (size - 1)), rel=1e-5
    )
    assert mean_variance(outside) == pytest.approx(variance / n * (1 - n / (size - 1)), rel=1e-5)


def test_a_known_shard_has_the_auroc_of_the_gaussian_theory():
    # The means under the two hypotheses are N / (n (N-1)) of h apart, the mean varies by 1/n - 1/N; here N = 2 n.
    n, d, repetitions = 300, 30, 20
    generator = torch.Generator().manual_seed(3)
    latents = _points(2 * n, 1, d)
    population = population_of(_cell(latents))
    found = []
    for _ in range(repetitions):
        order = torch.randperm(2 * n, generator=generator)
        released = _released(latents[order[:n]].mean(dim=0, keepdim=True), 0.0, [n])
        own = torch.zeros(2 * n, dtype=torch.int64)
        scores = population_scores(_cell(latents[order]), own, released, population)
        table = scores["known_shard_likelihood_ratio"].unsqueeze(0)
        found.append(float(auroc_rows(table, torch.arange(2 * n) < n)))
    index = math.sqrt(d * (2 / (2 * n - 1)) ** 2 / (1 / (2 * n)))
    assert sum(found) / repetitions == pytest.approx(NormalDist().cdf(index / math.sqrt(2)), abs=0.02)


def test_an_unknown_shard_is_the_mean_of_the_ratios_weighted_by_size():
    latents = _points(40, 4)
    population = population_of(_cell(latents))
    released = _released(torch.stack([latents[:6].mean(0), latents[6:20].mean(0)]), 0.3, [6, 14])
    known = [
        population_scores(_cell(latents), torch.full((40,), r), released, population)[
            "known_shard_likelihood_ratio"
        ]
        for r in (0, 1)
    ]
    both = population_scores(_cell(latents), None, released, population)
    assert set(both) == {"population_likelihood_ratio"}
    wanted = (0.3 * known[0].exp() + 0.7 * known[1].exp()).log()
    assert torch.allclose(both["population_likelihood_ratio"], wanted)


def test_a_candidate_of_an_unknown_cell_or_without_a_shard_carries_no_evidence():
    latents = _points(10, 5)
    released = _released(latents.mean(dim=0, keepdim=True), 0.1, [10])
    population = population_of(_cell(latents))
    elsewhere = population_scores(_cell(latents, client=0), torch.zeros(10).long(), released, population)
    empty = population_scores(
        _cell(latents), torch.zeros(10).long(), released._replace(counts=torch.tensor([0])), population
    )
    for scores in (elsewhere, empty):
        assert all(float(values.abs().max()) == 0 for values in scores.values())


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_identical_records_give_finite_scores_and_no_evidence(copies):
    latents = torch.ones(copies, DIM, dtype=torch.float64)
    released = _released(latents[:1], 0.0, [1])
    scores = population_scores(
        _cell(latents), torch.zeros(copies).long(), released, population_of(_cell(latents))
    )
    assert all(bool(values.isfinite().all()) for values in scores.values())
    assert len({float(value) for value in scores["known_shard_likelihood_ratio"]}) == 1


def test_moments_are_those_of_the_vectors():
    points = _points(30, 6)
    moments = moments_of(points)
    rebuilt = moments.basis @ torch.diag(moments.eigenvalue) @ moments.basis.T
    assert torch.allclose(rebuilt, torch.cov(points.T))
    assert (moments.size, moments_of(points, is_exhaustive=False).size) == (30, math.inf)


def test_the_informed_adversary_is_the_optimal_test_of_two_known_means():
    # All pairs at the same distance, so that the pooled AUROC is Φ(distance / (n σ √2)).
    pairs, n, std, distance = 4000, 8, 0.05, 0.6
    generator = torch.Generator().manual_seed(7)
    direction = _points(pairs, 8)
    members = _points(pairs, 9)
    others = members + distance * direction / direction.norm(dim=1, keepdim=True)
    exact = _points(pairs, 10)
    noise = std * torch.randn(pairs, DIM, generator=generator, dtype=torch.float64)
    released = _released(exact + noise, std, [n] * pairs)
    scores = informed_scores(members, others, torch.arange(pairs), exact, released)
    found = float(auroc_rows(scores.unsqueeze(0), torch.arange(2 * pairs) < pairs))
    wanted = NormalDist().cdf(distance / (n * std) / math.sqrt(2))
    assert found == pytest.approx(wanted, abs=0.015)


def test_the_informed_adversary_is_certain_without_noise():
    members, others, exact = _points(20, 11), _points(20, 12), _points(20, 13)
    scores = informed_scores(members, others, torch.arange(20), exact, _released(exact, 0.0, [3] * 20))
    assert bool((scores[:20] > 0).all() and (scores[20:] < 0).all() and scores.isfinite().all())
    same = informed_scores(members, members, torch.arange(20), exact, _released(exact, 0.0, [3] * 20))
    assert float(same.abs().max()) == 0
