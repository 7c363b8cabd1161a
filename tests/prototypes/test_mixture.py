from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsynth.privacy.parameters import PrivacyParameterError
from fedsynth.prototypes import (
    aggregate,
    between_inflation,
    mixture_from_release,
    mixture_log_density,
    sample_mixture,
)
from fedsynth.records import InvalidTensorError, Mixture, ShardRelease


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def random_class(seed, num_clients=5, num_components=4, dim=6):
    source = stream(seed)
    counts = torch.randint(0, 50, (num_clients, num_components), generator=source)
    counts[0] += 1  # no component without mass
    means = torch.randn(num_clients, num_components, dim, generator=source, dtype=torch.float64) * 3
    variances = torch.rand(num_clients, num_components, dim, generator=source, dtype=torch.float64)
    return counts, means, variances


def two_class_mixture():
    return Mixture(
        weights=torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64),
        means=torch.tensor([[[-3.0, 0.0], [3.0, 1.0]], [[0.0, 5.0], [100.0, 100.0]]], dtype=torch.float64),
        variances=torch.tensor([[[0.5, 1.0], [2.0, 0.1]], [[1.0, 4.0], [1.0, 1.0]]], dtype=torch.float64),
    )


def test_one_dimensional_case_by_hand():
    weights, means, variances = aggregate(
        torch.tensor([[3], [1]]), torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([[[1.0]], [[2.0]]])
    )
    # Mean (3·0 + 1·4)/4; variance (3·(1 + 1) + 1·(2 + 9))/4.
    assert (float(weights), float(means), float(variances)) == (1.0, 1.0, 4.25)


@pytest.mark.parametrize("seed", range(5))
def test_moments_equal_those_of_the_pooled_records(seed):
    # The law of total variance on raw data: the mixture must not know that clients exist.
    source = stream(seed)
    groups = [torch.randn(n, 3, generator=source, dtype=torch.float64) * n + n for n in (1, 2, 7, 40)]
    counts = torch.tensor([[len(group)] for group in groups])
    means = torch.stack([group.mean(dim=0, keepdim=True) for group in groups])
    variances = torch.stack([group.var(dim=0, correction=0, keepdim=True) for group in groups])
    pooled, components = torch.cat(groups), aggregate(counts, means, variances)
    torch.testing.assert_close(components.means[0], pooled.mean(dim=0))
    torch.testing.assert_close(components.variances[0], pooled.var(dim=0, correction=0))


def test_moments_equal_those_of_samples_from_the_clients():
    counts = torch.tensor([[60_000], [30_000], [10_000]])
    means = torch.tensor([[[0.0]], [[2.0]], [[-5.0]]], dtype=torch.float64)
    variances = torch.tensor([[[1.0]], [[4.0]], [[0.25]]], dtype=torch.float64)
    source = stream(4)
    samples = torch.cat(
        [
            mean + variance.sqrt() * torch.randn(int(n), generator=source, dtype=torch.float64)
            for n, mean, variance in zip(counts.flatten(), means.flatten(), variances.flatten(), strict=True)
        ]
    )
    components = aggregate(counts, means, variances)
    spread = math.sqrt(float(components.variances) / len(samples))
    assert float(components.means) == pytest.approx(float(samples.mean()), abs=4 * spread)
    assert float(components.variances) == pytest.approx(float(samples.var()), rel=0.03)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31))
def test_weights_sum_to_one_and_client_order_does_not_matter(seed):
    counts, means, variances = random_class(seed)
    order = torch.randperm(5, generator=stream(seed + 1))
    first = aggregate(counts, means, variances)
    second = aggregate(counts[order], means[order], variances[order])
    assert float(first.weights.sum()) == pytest.approx(1.0, abs=1e-14)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_single_client_is_the_identity_bit_for_bit():
    counts, means, variances = random_class(3, num_clients=1)
    components = aggregate(counts, means, variances, floor=0.0)
    assert torch.equal(components.means, means[0])
    assert torch.equal(components.variances, variances[0])
    torch.testing.assert_close(components.weights, counts[0].double() / counts.sum())


def test_variances_are_raised_to_the_floor():
    counts, means = torch.tensor([[1]]), torch.tensor([[[5.0]]])
    assert float(aggregate(counts, means, torch.zeros(1, 1, 1)).variances) == pytest.approx(1e-6)
    assert float(aggregate(counts, means, torch.zeros(1, 1, 1), floor=0.5).variances) == 0.5


def test_component_without_mass_gets_weight_zero_mean_zero_and_the_floor():
    counts = torch.tensor([[3, 0], [1, 0]])
    means = torch.ones(2, 2, 3, dtype=torch.float64)
    components = aggregate(counts, means, means, floor=1e-4)
    assert components.weights.tolist() == [1.0, 0.0]
    assert components.means[1].tolist() == [0.0] * 3
    assert components.variances[1].tolist() == [1e-4] * 3


def test_noise_of_the_means_inflates_the_variance_as_documented():
    # K clients with true mean 0 and noise of variance s²: E[Σ̃] = s² (1 - 1/K).
    noise = 0.5 * torch.randn(4, 1, 50_000, generator=stream(8), dtype=torch.float64)
    components = aggregate(torch.ones(4, 1), noise, torch.zeros_like(noise))
    assert float(components.variances.mean()) == pytest.approx(0.25 * 3 / 4, rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": torch.zeros(2, 1)}, "No client holds a record"),
        ({"counts": torch.tensor([[-1], [2]])}, "negative"),
        ({"counts": torch.ones(3, 1)}, "counts must have shape"),
        ({"variances": -torch.ones(2, 1, 3)}, "negative"),
        ({"variances": torch.ones(2, 1, 2)}, "variances must have shape"),
        ({"means": torch.full((2, 1, 3), torch.nan)}, "means holds"),
        ({"means": torch.zeros(2, 1)}, "means must have 3 axes"),
    ],
)
def test_aggregate_refuses_inconsistent_input(change, message):
    arguments = {"counts": torch.ones(2, 1), "means": torch.zeros(2, 1, 3), "variances": torch.ones(2, 1, 3)}
    with pytest.raises(InvalidTensorError, match=message):
        aggregate(**(arguments | change))


@pytest.mark.parametrize("floor", [-1e-6, math.nan, math.inf])
def test_aggregate_refuses_an_impossible_floor(floor):
    with pytest.raises(PrivacyParameterError, match="floor"):
        aggregate(torch.ones(1, 1), torch.zeros(1, 1, 1), torch.ones(1, 1, 1), floor=floor)


def release_of_two_classes(class_one_counts):
    base = 10 * torch.randn(4, 5, generator=stream(1), dtype=torch.float64)
    means = torch.stack([base, base[[3, 1, 0, 2]]]).unsqueeze(1).repeat(1, 2, 1, 1)
    counts = torch.tensor([[[8, 7, 6, 5], class_one_counts], [[1, 2, 3, 4], [0, 0, 0, 0]]])
    variances = torch.ones_like(means)
    return base, ShardRelease(
        means, variances, counts, torch.zeros(2, 2, 4), clip_radius=1.0, epsilon=math.inf, delta=1e-5
    )


def test_mixture_of_a_release_pools_matching_components():
    base, release = release_of_two_classes([1, 1, 1, 1])
    mixture = mixture_from_release(release)
    torch.testing.assert_close(mixture.means, base.repeat(2, 1, 1))
    torch.testing.assert_close(
        mixture.variances, torch.ones_like(mixture.variances)
    )  # nothing between clients
    # Client 1 holds base in the order 3, 1, 0, 2 with counts 1, 2, 3, 4.
    torch.testing.assert_close(mixture.weights[0], torch.tensor([8 + 3, 7 + 2, 6 + 4, 5 + 1]).double() / 36)


def test_class_without_any_record_is_refused_by_name():
    _, release = release_of_two_classes([0, 0, 0, 0])
    with pytest.raises(InvalidTensorError, match=r"classes \[1\]"):
        mixture_from_release(release)


def test_samples_have_the_moments_of_the_mixture():
    mixture = two_class_mixture()
    latents, labels = sample_mixture(mixture, 40_000, stream(2))
    assert torch.bincount(labels).tolist() == [40_000, 40_000]
    for label in range(2):
        weights, means = mixture.weights[label, :, None], mixture.means[label]
        mean = (weights * means).sum(dim=0)
        variance = (weights * (mixture.variances[label] + (means - mean).square())).sum(dim=0)
        samples = latents[labels == label]
        assert torch.all((samples.mean(dim=0) - mean).abs() < 4 * (variance / 40_000).sqrt())
        torch.testing.assert_close(samples.var(dim=0), variance, rtol=0.05, atol=0.0)


def test_samples_of_one_coordinate_follow_the_mixture_distribution():
    mixture = two_class_mixture()
    latents, labels = sample_mixture(mixture, 5_000, stream(3))

    def cdf(x):
        return 0.25 * stats.norm.cdf(x, -3, math.sqrt(0.5)) + 0.75 * stats.norm.cdf(x, 3, math.sqrt(2))

    assert stats.kstest(latents[labels == 0][:, 0].numpy(), cdf).pvalue > 1e-4


def test_component_of_weight_zero_is_never_drawn():
    latents, labels = sample_mixture(two_class_mixture(), 5_000, stream(4))
    assert float(latents[labels == 1].max()) < 50  # the dead component sits at 100


def test_sampling_is_reproducible_and_leaves_the_global_state():
    before = torch.random.get_rng_state()
    first, second = (sample_mixture(two_class_mixture(), 10, stream(5))[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("number", [0, -1, 2.5])
def test_sampling_refuses_an_impossible_number(number):
    with pytest.raises(PrivacyParameterError, match="num_per_class"):
        sample_mixture(two_class_mixture(), number, stream())


def test_log_density_equals_scipy():
    mixture, points = two_class_mixture(), torch.randn(20, 2, generator=stream(6)) * 4
    expected = torch.zeros(20, 2, dtype=torch.float64)
    for label in range(2):
        for weight, mean, variance in zip(
            mixture.weights[label], mixture.means[label], mixture.variances[label], strict=True
        ):
            density = stats.multivariate_normal(mean.numpy(), torch.diag(variance).numpy())
            expected[:, label] += float(weight) * torch.from_numpy(density.pdf(points.double().numpy()))
    torch.testing.assert_close(mixture_log_density(mixture, points), expected.log())


def test_log_density_stays_finite_far_away():
    assert bool(torch.isfinite(mixture_log_density(two_class_mixture(), torch.full((1, 2), 1e4))).all())


def test_log_density_refuses_another_dimension():
    with pytest.raises(InvalidTensorError, match="3 dimensions, the mixture has 2"):
        mixture_log_density(two_class_mixture(), torch.zeros(1, 3))


def test_boolean_counts_are_refused() -> None:
    means = torch.zeros(1, 2, 3)
    with pytest.raises(InvalidTensorError, match="counts must be numbers of records, got booleans"):
        aggregate(torch.ones(1, 2, dtype=torch.bool), means, means)


def low_rank_mixture():
    base = two_class_mixture()
    factors = torch.randn(2, 2, 2, 3, generator=stream(5), dtype=torch.float64)
    return Mixture(base.weights, base.means, base.variances, factors)


def test_density_with_factors_equals_scipy():
    mixture = low_rank_mixture()
    points = torch.randn(20, 2, generator=stream(6), dtype=torch.float64) * 3
    found = mixture_log_density(mixture, points)
    for label in range(2):
        total = sum(
            float(weight) * stats.multivariate_normal(mean, torch.diag(variance) + factor @ factor.T).pdf(points)
            for weight, mean, variance, factor in zip(
                mixture.weights[label], mixture.means[label], mixture.variances[label], mixture.factors[label],
                strict=True,
            )
        )  # fmt: skip
        torch.testing.assert_close(found[:, label].exp(), torch.as_tensor(total))


def test_samples_with_factors_have_the_covariance():
    base, size = low_rank_mixture(), 40_000
    mixture = Mixture(torch.tensor([[1.0, 0.0]] * 2).double(), base.means, base.variances, base.factors)
    drawn, label = sample_mixture(mixture, size, stream(7))
    for c in range(2):
        wanted = torch.diag(base.variances[c, 0]) + base.factors[c, 0] @ base.factors[c, 0].T
        torch.testing.assert_close(torch.cov(drawn[label == c].T), wanted, rtol=0.05, atol=0.05)
        torch.testing.assert_close(drawn[label == c].mean(0), base.means[c, 0], rtol=0, atol=0.1)


def test_factors_of_zero_change_neither_samples_nor_density():
    base = two_class_mixture()
    same = Mixture(base.weights, base.means, base.variances, torch.zeros(2, 2, 2, 1, dtype=torch.float64))
    assert torch.equal(sample_mixture(base, 50, stream(1))[0], sample_mixture(same, 50, stream(1))[0])
    points = torch.randn(5, 2, generator=stream(2), dtype=torch.float64)
    torch.testing.assert_close(mixture_log_density(base, points), mixture_log_density(same, points))


def test_factors_are_stored_with_the_mixture_only_if_there_are_any():
    mixture = low_rank_mixture()
    again = Mixture.from_tensors(mixture.to_tensors())
    assert torch.equal(again.factors, mixture.factors)
    assert set(two_class_mixture().to_tensors()) == {"weights", "means", "variances"}
    with pytest.raises(InvalidTensorError, match="factors must have shape"):
        Mixture(mixture.weights, mixture.means, mixture.variances, mixture.factors[:, :1])


def test_inflation_by_hand():
    share, noise = torch.tensor([[0.25], [0.75]]), torch.tensor([[2.0], [1.0]])
    # 1/4 · 3/4 · 4 + 3/4 · 1/4 · 1
    assert float(between_inflation(share, noise)) == pytest.approx(0.9375)
    assert float(between_inflation(torch.ones(1, 1), noise[:1])) == 0  # one client: only the mean moves


def test_subtracting_the_noise_makes_the_variance_unbiased():
    counts = torch.tensor([[10], [30], [60]])
    noise_std = torch.tensor([[3.0], [2.0], [0.5]], dtype=torch.float64)
    exact = torch.tensor([[[-10.0]], [[0.0]], [[12.0]]], dtype=torch.float64)
    within = torch.ones(3, 1, 1, dtype=torch.float64)
    wanted = float(aggregate(counts, exact, within).variances)
    source, draws = stream(3), 20_000
    # Every draw is a dimension of its own; the between-client term is far from its bound at 0.
    noisy = exact + noise_std.unsqueeze(-1) * torch.randn(3, 1, draws, generator=source, dtype=torch.float64)
    spread = within.expand(3, 1, draws)
    corrected = aggregate(counts, noisy, spread, noise_std=noise_std).variances.flatten()
    literal = aggregate(counts, noisy, spread).variances.flatten()
    error = 4 * float(corrected.std()) / math.sqrt(draws)
    assert float(corrected.mean()) == pytest.approx(wanted, abs=error)
    share = counts.double() / counts.sum()
    inflation = float(between_inflation(share, noise_std))
    assert inflation > 2 * error
    assert float(literal.mean()) == pytest.approx(wanted + inflation, abs=error)


def test_the_corrected_variance_never_falls_below_that_within_clients():
    counts, means, variances = random_class(4)
    noise_std = torch.full(counts.shape, 100.0, dtype=torch.float64)
    corrected = aggregate(counts, means, variances, noise_std=noise_std)
    share = (counts / counts.sum(dim=0)).unsqueeze(-1)
    torch.testing.assert_close(corrected.variances, (share * variances).sum(dim=0))
    plain = aggregate(counts, means, variances)
    exact = aggregate(counts, means, variances, noise_std=torch.zeros_like(noise_std))
    assert torch.equal(plain.variances, exact.variances)
    with pytest.raises(InvalidTensorError, match="noise_std must have shape"):
        aggregate(counts, means, variances, noise_std=noise_std[:1])
