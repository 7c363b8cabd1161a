"""The U-Net inside EDM's denoiser, in both styles."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsynth.models.image_denoiser import ImageDenoiser
from fedsynth.models.inputs import ModelInputError

STYLES = ["plain", "magnitude_preserving"]
EDM2 = {
    "multipliers": (1, 2, 3, 4),
    "blocks_per_level": 3,
    "bottom_blocks": 2,
    "attention_levels": (2, 3),
    "style": "magnitude_preserving",
}


def small(style: str, **options) -> ImageDenoiser:
    """A network whose output is not zero, as after some training."""
    torch.manual_seed(0)
    network = ImageDenoiser(
        **({"channels": 8, "condition_dim": 6, "head_channels": 8, "style": style} | options)
    )
    for name, value in network.named_parameters():
        if name.endswith("gain") or not value.any():
            nn.init.normal_(value, std=0.3)
    return network.eval()


def inputs(rows: int = 3, size: int = 6):
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 4, size, size, generator=draws)
    noise = torch.randn(rows, generator=draws)
    return x, noise, nn.functional.normalize(torch.randn(rows, 6, generator=draws))


@pytest.mark.parametrize(("channels", "millions"), [(128, 125), (192, 280)])
def test_sizes_of_edm2_xs_and_s_are_the_published_ones(channels, millions):
    """EDM2's table of networks: 125 and 280 million weights, with a condition of 1,000 classes."""
    with torch.device("meta"):
        network = ImageDenoiser(condition_dim=1000, channels=channels, **EDM2)
    assert round(sum(p.numel() for p in network.parameters()) / 1e6) == millions


def test_default_network_has_the_documented_size():
    network = ImageDenoiser(condition_dim=1280)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(0.9e6, rel=0.02)


@pytest.mark.parametrize("style", STYLES)
def test_output_is_zero_before_training(style):
    x, noise, condition = inputs()
    network = ImageDenoiser(channels=8, condition_dim=6, style=style)
    assert not network(x, noise, condition).any()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("multipliers", "size"), [((1,), 5), ((1, 2), 6), ((1, 2, 2), 12)])
def test_output_has_the_shape_of_the_input(style, multipliers, size):
    network = small(style, multipliers=multipliers, attention_levels=(0,), blocks_per_level=2)
    x, noise, condition = inputs(size=size)
    assert network(x, noise, condition).shape == x.shape


@pytest.mark.parametrize("style", STYLES)
def test_rows_do_not_see_each_other(style):
    network, (x, noise, condition) = small(style), inputs()
    together = network(x, noise, condition)
    for row in range(3):
        part = slice(row, row + 1)
        torch.testing.assert_close(
            network(x[part], noise[part], condition[part]), together[part], atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("style", STYLES)
def test_noise_level_and_condition_change_the_output(style):
    network, (x, noise, condition) = small(style), inputs()
    base = network(x, noise, condition)
    assert (network(x, noise + 0.5, condition) - base).abs().max() > 1e-3
    assert (network(x, noise, condition.roll(1, 0)) - base).abs().max() > 1e-3


@pytest.mark.parametrize("style", STYLES)
def test_no_condition_is_a_condition_of_zeros(style):
    network, (x, noise, _) = small(style), inputs()
    assert torch.equal(network(x, noise, None), network(x, noise, torch.zeros(3, 6)))


@pytest.mark.parametrize("style", STYLES)
def test_channels_last_changes_the_layout_and_not_the_result(style):
    network, (x, noise, condition) = small(style), inputs()
    expected = network(x, noise, condition)
    network = network.to(memory_format=torch.channels_last)
    result = network(x.contiguous(memory_format=torch.channels_last), noise, condition)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("style", STYLES)
def test_every_weight_gets_a_gradient(style):
    network, (x, noise, condition) = small(style).train(), inputs()
    network(x, noise, condition).square().sum().backward()
    without = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("style", STYLES)
def test_a_state_restores_the_network_with_its_random_features(style):
    first, second, (x, noise, condition) = small(style), small(style), inputs()
    for value in second.state_dict().values():
        value.zero_()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x, noise, condition), second(x, noise, condition))


@pytest.mark.parametrize("style", STYLES)
def test_the_network_learns_what_only_the_condition_tells(style):
    """Constant images ±1 chosen by the condition, drowned in noise: the best error without it is 1."""
    torch.manual_seed(0)
    network = ImageDenoiser(channels=8, condition_dim=2, head_channels=8, style=style)
    optimizer, draws = torch.optim.Adam(network.parameters(), lr=1e-2), torch.Generator().manual_seed(0)
    errors = []
    for _ in range(60):
        label = torch.randint(2, (32,), generator=draws)
        target = (2.0 * label - 1).reshape(-1, 1, 1, 1).expand(-1, 4, 4, 4)
        x = torch.randn(32, 4, 4, 4, generator=draws)
        output = network(x, torch.zeros(32), nn.functional.one_hot(label, 2).float())
        optimizer.zero_grad()
        errors.append((output - target).square().mean())
        errors[-1].backward()
        optimizer.step()
    assert errors[0].item() == pytest.approx(1, abs=1e-5)
    assert torch.stack(errors[-5:]).mean() < 0.2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"style": "adm"}, "style"),
        ({"channels": 0}, "channels"),
        ({"multipliers": ()}, "multipliers"),
        ({"blocks_per_level": 0}, "blocks_per_level"),
        ({"bottom_blocks": 0}, "bottom_blocks"),
        ({"attention_levels": (2,)}, "attention_levels"),
        ({"condition_dim": -1}, "condition_dim"),
        ({"dropout": 1.0}, "dropout"),
        ({"channels": 2}, "at least 4 channels"),
    ],
)
def test_impossible_networks_are_refused(options, said):
    with pytest.raises(ModelInputError, match=said):
        ImageDenoiser(**options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(3, 3, 6, 6)}, "x must have shape"),
        ({"x": torch.zeros(3, 4, 6, 6, dtype=torch.uint8)}, "floating-point"),
        ({"x": torch.zeros(3, 4, 7, 6)}, "multiples of 2"),
        ({"noise": torch.zeros(())}, "noise"),
        ({"condition": torch.zeros(3, 5)}, "condition"),
        ({"condition": torch.zeros(2, 6)}, "condition"),
    ],
)
def test_wrong_inputs_are_refused(change, said):
    x, noise, condition = inputs()
    with pytest.raises(ModelInputError, match=said):
        small("plain")(**({"x": x, "noise": noise, "condition": condition} | change))


def test_an_unconditional_network_refuses_conditions():
    x, noise, condition = inputs()
    network = small("plain", condition_dim=0)
    assert network(x, noise).shape == x.shape
    with pytest.raises(ModelInputError, match="unconditional"):
        network(x, noise, condition)
