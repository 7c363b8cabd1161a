"""EDM2's power-function averages of weights, against their closed form, and their use."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from fedsynth.diffusion.ema import exponential_moving_average
from fedsynth.diffusion.inputs import DiffusionInputError
from fedsynth.diffusion.power_ema import (
    MAX_RELATIVE_WIDTH,
    PowerAverages,
    averaged_weights,
    power_decay,
    power_exponent,
    power_function_average,
    relative_width,
)


def set_weight(model: nn.Linear, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def trained(widths=(0.05, 0.2), updates: int = 30) -> tuple[nn.Linear, PowerAverages]:
    model = nn.Linear(1, 1, bias=False)
    averages = PowerAverages(model, widths)
    for step in range(1, updates + 1):
        set_weight(model, float(step))
        averages.update(model)
    return model, averages


@given(st.floats(0, 200))
def test_width_is_the_deviation_of_the_law_with_density_t_to_the_gamma(gamma):
    """That law is Beta(γ + 1, 1)."""
    assert relative_width(gamma) == pytest.approx(stats.beta(gamma + 1, 1).std(), rel=1e-6)


@given(st.floats(0.005, MAX_RELATIVE_WIDTH))
def test_exponent_and_width_are_inverse(width):
    assert relative_width(power_exponent(width)) == pytest.approx(width, rel=1e-6)


def test_exponents_of_edm2s_widths():
    """16.97 and 6.94, as printed with EDM2."""
    assert power_exponent(0.05) == pytest.approx(16.97, abs=0.005)
    assert power_exponent(0.10) == pytest.approx(6.94, abs=0.005)


@pytest.mark.parametrize("width", [0.05, 0.10, 0.25, MAX_RELATIVE_WIDTH])
def test_average_follows_its_closed_form(width):
    """The factors of the recursion telescope: update τ of t has weight (τ^(γ+1) - (τ-1)^(γ+1)) / t^(γ+1)."""
    model, exponent, updates = nn.Linear(1, 1, bias=False), power_exponent(width) + 1, 40
    average = power_function_average(model, width)
    values = torch.randn(updates, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    for value in values:
        set_weight(model, value)
        average.update_parameters(model)
    shares = [(t**exponent - (t - 1) ** exponent) / updates**exponent for t in range(1, updates + 1)]
    expected = sum(share * value for share, value in zip(shares, values, strict=True))
    assert sum(shares) == pytest.approx(1)
    assert average.module.weight.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_widest_average_is_the_plain_mean():
    _, averages = trained((MAX_RELATIVE_WIDTH,), updates=30)
    assert averages.at(MAX_RELATIVE_WIDTH).weight.item() == pytest.approx(15.5, rel=1e-5)


def test_the_profile_keeps_its_relative_width_as_training_grows():
    """The mean of the weights' times falls behind by 1 / (γ + 2) of the training, at any length."""
    for updates in (200, 800):
        _, averages = trained((0.10,), updates)
        behind = 1 - averages.at(0.10).weight.item() / updates
        assert behind == pytest.approx(1 / (power_exponent(0.10) + 2), abs=1 / updates)


def test_first_update_copies_the_weights():
    assert power_decay(1, 5.0) == 0
    _, averages = trained(updates=1)
    assert averages.at(0.05).weight.item() == 1


def test_constant_weights_are_their_own_average():
    model = nn.Linear(3, 2)
    averages = PowerAverages(model, (0.05, 0.1))
    for _ in range(10):
        averages.update(model)
    for width in (0.05, 0.1):
        assert torch.equal(averages.at(width).weight, model.weight)


def test_averages_go_on_after_a_checkpoint():
    model, averages = trained(updates=10)
    restored = PowerAverages(model, averages.widths)
    restored.load_state_dict(averages.state_dict())
    set_weight(model, -4.0)
    for each in (averages, restored):
        each.update(model)
    assert torch.equal(averages.at(0.05).weight, restored.at(0.05).weight)
    assert restored.at(0.05).weight.item() != -4.0


def test_a_checkpoint_of_other_widths_is_refused():
    _, averages = trained((0.05, 0.2))
    with pytest.raises(DiffusionInputError, match="widths"):
        PowerAverages(nn.Linear(1, 1, bias=False), (0.05, 0.1)).load_state_dict(averages.state_dict())


def test_a_snapshot_is_not_moved_by_further_updates():
    model, averages = trained()
    snapshot = averages.snapshot(0.05)
    before = averages.at(0.05).weight.item()
    set_weight(model, 100.0)
    averages.update(model)
    early = nn.Linear(1, 1, bias=False)
    early.load_state_dict(snapshot)
    assert early.weight.item() == before != averages.at(0.05).weight.item()


def test_averages_are_not_trained():
    assert not any(p.requires_grad for p in trained()[1].parameters())


@pytest.mark.parametrize("kind", ["power", "exponential"])
def test_inside_the_block_the_model_is_the_average_and_afterwards_itself(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    make = {
        "power": lambda: power_function_average(model, 0.1),
        "exponential": lambda: exponential_moving_average(model, 0.9),
    }
    average = make[kind]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        average.update_parameters(model)
    x = torch.randn(4, 3)
    model.eval(), average.eval()
    own, averaged = model(x), average.module(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(model.parameters())
    with averaged_weights(model, average.module):
        assert torch.equal(model(x), averaged)
        assert not torch.equal(model(x), own)
    assert torch.equal(model(x), own)
    assert torch.equal(average.module(x), averaged)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_weights_come_back_after_an_exception():
    model, averages = trained()
    x = torch.ones(1, 2)  # of a width the network does not take
    with pytest.raises(RuntimeError, match="shapes"), averaged_weights(model, averages.at(0.2)):
        model(x)
    assert model.weight.item() == 30


def test_training_goes_on_after_the_block_as_if_it_had_not_been():
    def weights(with_block: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        average, optimizer = power_function_average(model, 0.1), torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).square().sum().backward()
            optimizer.step()
            average.update_parameters(model)
            if with_block:
                with averaged_weights(model, average.module):
                    model(torch.ones(3, 2))
        return model.weight.detach()

    assert torch.equal(weights(True), weights(False))


@pytest.mark.parametrize("width", [0.0, -0.1, 0.29, float("nan")])
def test_impossible_widths_are_refused(width):
    with pytest.raises(DiffusionInputError, match="width"):
        power_exponent(width)


def test_impossible_requests_are_refused():
    model, averages = trained()
    with pytest.raises(DiffusionInputError, match="gamma"):
        relative_width(-1.0)
    with pytest.raises(DiffusionInputError, match="no average of width"):
        averages.at(0.1)
    with pytest.raises(DiffusionInputError, match="never called"):
        PowerAverages(model).at(0.05)
    for widths in ((), (0.1, 0.1)):
        with pytest.raises(DiffusionInputError, match="widths"):
            PowerAverages(model, widths)
    with pytest.raises(DiffusionInputError, match=r"\.module"), averaged_weights(model, averages.averages[0]):
        pass
    with (
        pytest.raises(DiffusionInputError, match="weight"),
        averaged_weights(model, nn.Linear(2, 1, bias=False)),
    ):
        pass
