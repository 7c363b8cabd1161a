from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy import PrivacyParameterError, count_sensitivity
from fedsynth.prototypes.components import class_histograms, equal_mass_cells
from fedsynth.records import InvalidTensorError

NOBODY = torch.zeros(0, dtype=torch.int64)


def histograms(coordinate: torch.Tensor, labels: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
    return class_histograms(coordinate, labels, clients, radius=2.0, num_bins=8, num_clients=2, num_classes=2)


def test_counts_equal_numpy_cell_by_cell() -> None:
    source = torch.Generator().manual_seed(0)
    coordinate = torch.rand(500, generator=source, dtype=torch.float64) * 4 - 2
    labels, clients = (torch.randint(2, (500,), generator=source) for _ in range(2))
    counts = histograms(coordinate, labels, clients)
    for client in range(2):
        for label in range(2):
            own = coordinate[(clients == client) & (labels == label)]
            assert counts[client, label].tolist() == np.histogram(own, bins=8, range=(-2, 2))[0].tolist()


def test_every_record_is_counted_wherever_it_lies() -> None:
    coordinate = torch.tensor([-9.0, -2.0, 2.0, 9.0])
    counts = histograms(coordinate, torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    assert counts[0, 0].tolist() == [2, 0, 0, 0, 0, 0, 0, 2]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31))
def test_no_replacement_moves_a_client_s_counts_by_more_than_the_sensitivity(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    coordinate = torch.randn(12, generator=source)
    labels, clients = (torch.randint(2, (12,), generator=source) for _ in range(2))
    before = histograms(coordinate, labels, clients)
    coordinate[5], labels[5] = torch.randn((), generator=source), torch.randint(2, (), generator=source)
    moved = histograms(coordinate, labels, clients) - before
    assert float(moved.norm()) <= count_sensitivity() + 1e-12
    assert not moved[1 - clients[5]].any()  # no other client's message changes


@pytest.mark.parametrize("num_components", [1, 2, 3, 7])
def test_cells_hold_equal_mass_and_meet_without_gaps(num_components: int) -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)
    histogram = torch.histc(values, bins=64, min=-2, max=2)
    bounds = equal_mass_cells(histogram, noise_std=0.0, radius=2.0, num_components=num_components)
    assert bounds.shape == (num_components, 2)
    assert torch.equal(bounds[1:, 0], bounds[:-1, 1])
    for low, high in bounds.tolist():
        share = float(((values > low) & (values <= high)).double().mean())
        assert share == pytest.approx(1 / num_components, abs=0.03)  # a bin holds up to 0.025, spread evenly


def test_bins_within_the_noise_count_as_empty() -> None:
    histogram = torch.tensor([3.0, 0.0, 50.0, 60.0, 0.0, -4.0, 4.0, 0.0])
    bounds = equal_mass_cells(histogram, noise_std=4.0, radius=4.0, num_components=1)
    assert bounds.tolist() == [[-2.0, 0.0]]


def test_without_a_bin_above_the_noise_there_is_one_cell() -> None:
    for histogram in (torch.zeros(8), torch.full((8,), 5.0)):
        bounds = equal_mass_cells(histogram, noise_std=3.0, radius=4.0, num_components=3)
        assert bounds.tolist() == [[-4.0, 4.0]]


def test_all_mass_in_one_bin_is_divided_inside_it() -> None:
    histogram = torch.zeros(8)
    histogram[2] = 100.0
    bounds = equal_mass_cells(histogram, noise_std=0.0, radius=4.0, num_components=4)
    torch.testing.assert_close(bounds[:, 1] - bounds[:, 0], torch.full((4,), 0.25, dtype=torch.float64))


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InvalidTensorError, match="at least one bin"):
        equal_mass_cells(torch.zeros(0), noise_std=0.0, radius=1.0, num_components=1)
    with pytest.raises(InvalidTensorError, match="NaN"):
        equal_mass_cells(torch.full((3,), math.nan), noise_std=0.0, radius=1.0, num_components=1)
    with pytest.raises(PrivacyParameterError, match="num_components"):
        equal_mass_cells(torch.ones(3), noise_std=0.0, radius=1.0, num_components=0)
    with pytest.raises(InvalidTensorError, match="lengths"):
        histograms(torch.zeros(3), NOBODY, NOBODY)
    with pytest.raises(PrivacyParameterError, match="radius"):
        class_histograms(torch.zeros(0), NOBODY, NOBODY, radius=0.0, num_bins=8, num_clients=2, num_classes=2)
