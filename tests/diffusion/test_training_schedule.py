"""Learning rate and length of EDM2's trainings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.training_schedule import inverse_sqrt_rate, iterations_of


@pytest.mark.parametrize(("kimg", "iterations"), [(83_886, 40_960), (100_663, 49_152), (8_388, 4_096)])
def test_lengths_of_the_paper_at_batch_2048(kimg, iterations):
    """80, 96 and 8 Mi images: the file names are thousands of images, rounded down."""
    assert iterations_of(kimg, 2048) == iterations
    assert iterations * 2048 == {40_960: 80, 49_152: 96, 4_096: 8}[iterations] * 2**20
    assert iterations * 2048 // 1000 == kimg


@given(st.integers(0, 10**6), st.integers(1000, 10**5))
def test_iterations_are_found_again_from_their_rounded_length(iterations, batch_size):
    assert iterations_of(iterations * batch_size // 1000, batch_size) == iterations


@given(st.integers(1, 10**6), st.integers(1, 5000))
def test_iterations_are_the_fewest_that_see_enough_images(kimg, batch_size):
    iterations = iterations_of(kimg, batch_size)
    assert (iterations - 1) * batch_size < 1000 * kimg <= iterations * batch_size


def test_rate_rises_linearly_stays_and_falls_as_the_root():
    rate = [inverse_sqrt_rate(t, reference=2.0, decay=400, ramp=100) for t in (0, 25, 100, 399, 400, 1600)]
    assert rate == pytest.approx([0.0, 0.5, 2.0, 2.0, 2.0, 1.0])


@given(st.floats(1, 1e6), st.floats(1, 100))
def test_four_times_the_time_halves_the_rate(decay, factor):
    late = inverse_sqrt_rate(factor * decay, reference=1.0, decay=decay)
    assert inverse_sqrt_rate(4 * factor * decay, reference=1.0, decay=decay) == pytest.approx(late / 2)


def test_without_decay_and_ramp_the_rate_is_constant():
    assert {inverse_sqrt_rate(t, reference=0.0003) for t in (0, 1, 1e9)} == {0.0003}


def test_the_papers_rate_at_the_end_of_its_training():
    """40,960 of 17,000 iterations: the root of 2.409."""
    images, decay = 40_960 * 2048, 17_000 * 2048
    rate = inverse_sqrt_rate(images, reference=0.0003, decay=decay, ramp=10_000_000)
    assert rate == pytest.approx(0.0003 / math.sqrt(40_960 / 17_000))


@pytest.mark.parametrize(
    "change", [{"time": -1.0}, {"decay": -1.0}, {"ramp": -1.0}, {"reference": 0.0}, {"reference": math.nan}]
)
def test_impossible_schedules_are_refused(change):
    with pytest.raises(DiffusionInputError):
        inverse_sqrt_rate(**({"time": 1.0, "reference": 1.0} | change))


@pytest.mark.parametrize(("kimg", "batch_size"), [(-1, 8), (8, 0)])
def test_impossible_lengths_are_refused(kimg, batch_size):
    with pytest.raises(DiffusionInputError, match="kimg"):
        iterations_of(kimg, batch_size)
