from __future__ import annotations

import pytest
import torch
from scipy import stats

from fedsynth.privacy.mechanism import add_gaussian_noise
from fedsynth.privacy.parameters import PrivacyParameterError
from fedsynth.records import InvalidTensorError


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def test_noise_is_normal_with_the_given_std():
    noise = add_gaussian_noise(torch.zeros(20_000), 0.7, stream(3))
    statistic = float((noise / 0.7).square().sum())
    low, high = stats.chi2.interval(1 - 1e-4, df=20_000)
    assert low < statistic < high
    assert stats.kstest(noise.numpy() / 0.7, "norm").pvalue > 1e-4


def test_noise_scales_entry_by_entry_and_zero_leaves_values_exact():
    values = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    std = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    noisy, unit = add_gaussian_noise(values, std, stream()), add_gaussian_noise(values, 1.0, stream())
    assert torch.equal(noisy[0], values[0])
    torch.testing.assert_close(noisy[1] - values[1], 2 * (unit[1] - values[1]))


def test_same_stream_gives_the_same_noise_and_the_global_state_is_untouched():
    before = torch.random.get_rng_state()
    first, second = (add_gaussian_noise(torch.zeros(5), 1.0, stream(9)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    "std", [-1.0, float("nan"), float("inf"), torch.tensor([1.0, -1.0, 1.0]), torch.ones(2)]
)
def test_noise_refuses_impossible_stds(std):
    with pytest.raises(PrivacyParameterError, match="std"):
        add_gaussian_noise(torch.zeros(4, 3), std, stream())


def test_noise_refuses_values_that_hide_nothing():
    with pytest.raises(InvalidTensorError, match="1 NaN or infinite"):
        add_gaussian_noise(torch.tensor([1.0, torch.nan]), 1.0, stream())
