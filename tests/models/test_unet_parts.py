"""Resampling, attention and conditions of both U-Nets, against their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedsynth.models.inputs import ModelInputError
from fedsynth.models.mp_blocks import MPAttention, MPBlock, MPEmbedding
from fedsynth.models.plain_blocks import PlainAttention, PlainBlock, PlainEmbedding, group_norm
from fedsynth.models.unet_parts import BlockPlan, num_heads, resample, scaled_condition


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention_by_hand(qkv: torch.Tensor, heads: int, normalize: bool) -> torch.Tensor:
    """Softmax attention head by head and image by image, from a map [b, 3c, h, w]."""
    rows, channels, height, width = qkv.shape
    size = channels // (3 * heads)
    out = torch.empty(rows, channels // 3, height * width)
    for row in range(rows):
        q, k, v = qkv[row].reshape(3, heads, size, height * width)
        for head in range(heads):
            parts = [part[head] for part in (q, k, v)]  # [size, pixels]
            if normalize:
                parts = [p / (1e-4 + p.square().mean(0, keepdim=True).sqrt()) for p in parts]
            weight = torch.softmax(parts[0].T @ parts[1] / math.sqrt(size), dim=1)
            out[row, head * size : (head + 1) * size] = (weight @ parts[2].T).T
    return out.reshape(rows, channels // 3, height, width)


@pytest.mark.parametrize(("channels", "head_channels"), [(8, 64), (16, 8)])
def test_plain_attention_equals_the_formula_head_by_head(channels, head_channels):
    torch.manual_seed(0)
    layer, x = PlainAttention(channels, head_channels), normal(2, channels, 3, 4)
    nn.init.normal_(layer.output.weight)
    mixed = attention_by_hand(
        layer.queries_keys_values(layer.norm(x)), num_heads(channels, head_channels), False
    )
    torch.testing.assert_close(layer(x), (x + layer.output(mixed)) / math.sqrt(2), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("channels", "head_channels"), [(8, 64), (16, 8)])
def test_cosine_attention_equals_the_formula_head_by_head(channels, head_channels):
    torch.manual_seed(0)
    layer, x = MPAttention(channels, head_channels).eval(), normal(2, channels, 3, 4)
    mixed = attention_by_hand(layer.queries_keys_values(x), num_heads(channels, head_channels), True)
    expected = (0.7 * x + 0.3 * layer.output(mixed)) / math.hypot(0.7, 0.3)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)


def test_halving_takes_means_and_doubling_repeats():
    x = normal(2, 3, 4, 6)
    torch.testing.assert_close(resample(x, "down")[..., 0, 0], x[..., :2, :2].mean(dim=(2, 3)))
    assert torch.equal(resample(x, "up")[..., ::2, 1::2], x)
    assert resample(x, "keep") is x
    torch.testing.assert_close(resample(resample(x, "up"), "down"), x)


@pytest.mark.parametrize("embedding", [PlainEmbedding, MPEmbedding])
def test_no_condition_and_a_condition_of_zeros_are_the_same(embedding):
    layer, noise = embedding(16, 32, 5).eval(), torch.linspace(-1, 1, 3)
    assert torch.equal(layer(noise, None), layer(noise, torch.zeros(3, 5)))
    assert not torch.allclose(layer(noise, None), layer(noise, normal(3, 5)))


def test_a_unit_vector_becomes_one_of_magnitude_one():
    condition = nn.functional.normalize(normal(4, 2048))
    scaled = scaled_condition(condition, torch.zeros(4, 8), 2048)
    torch.testing.assert_close(scaled.square().mean(1), torch.ones(4))


@pytest.mark.parametrize("is_encoder", [True, False])
def test_magnitude_preserving_blocks_keep_the_magnitude(is_encoder):
    """An untrained block modulates by 1. Zeros at the border take a tenth of the branch's energy, which is a sixth of
    the sum's. Without attention, which averages pixels: of white images it leaves next to nothing."""
    torch.manual_seed(0)
    x = normal(8, 32, 16, 16)
    for _ in range(6):
        before = x.square().mean().sqrt().item()
        x = MPBlock(BlockPlan(32, 32, 16, is_encoder)).eval()(x, normal(8, 16))
        expected = 1 if is_encoder else before
        assert x.square().mean().sqrt().item() == pytest.approx(expected, rel=0.04)


def test_untrained_plain_blocks_return_their_trunk():
    """The second convolution is zero, so only the resampled, scaled trunk is left."""
    block, x = PlainBlock(BlockPlan(8, 8, 16, True, resample="down")), normal(2, 8, 4, 4)
    torch.testing.assert_close(block(x, normal(2, 16)), resample(x, "down") / math.sqrt(2))


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (32, 8), (96, 24), (144, 24), (512, 32)])
def test_groups_divide_the_channels_and_hold_at_least_four(channels, groups):
    assert group_norm(channels).num_groups == groups


def test_impossible_parts_are_refused():
    with pytest.raises(ModelInputError, match="at least 4 channels"):
        group_norm(3)
    with pytest.raises(ModelInputError, match="attention heads"):
        num_heads(100, 32)
    with pytest.raises(ModelInputError, match="condition must have shape"):
        scaled_condition(torch.zeros(3, 4), torch.zeros(3, 8), 5)
    with pytest.raises(ModelInputError, match="floating-point"):
        scaled_condition(torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, 8), 5)
