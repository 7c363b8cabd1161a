"""Weight averaging: the recursion itself, and which tensors it leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsynth.diffusion.ema import exponential_moving_average
from fedsynth.diffusion.inputs import DiffusionInputError


def test_average_follows_the_recursion_from_the_first_weights():
    model = nn.Linear(1, 1, bias=False)
    average, expected = exponential_moving_average(model, 0.9), None
    for step in range(20):
        value = float(step**2)
        with torch.no_grad():
            model.weight.fill_(value)
        average.update_parameters(model)
        expected = value if expected is None else 0.9 * expected + 0.1 * value
    assert average.module.weight.item() == pytest.approx(expected, rel=1e-5)


def test_buffers_are_copied_and_not_averaged():
    model = nn.BatchNorm1d(1)
    average = exponential_moving_average(model, 0.9)
    for value in (1.0, 5.0):
        model.running_mean.fill_(value)
        model.num_batches_tracked.fill_(int(value))
        average.update_parameters(model)
    assert average.module.running_mean.item() == 5
    assert average.module.num_batches_tracked.item() == 5


def test_averaging_leaves_the_trained_model_alone():
    model = nn.Linear(2, 2)
    average, before = exponential_moving_average(model, 0.5), model.weight.detach().clone()
    average.update_parameters(model)
    average.module.weight.data.zero_()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0])
def test_impossible_decays_are_refused(decay):
    with pytest.raises(DiffusionInputError, match="decay"):
        exponential_moving_average(nn.Linear(1, 1), decay)
