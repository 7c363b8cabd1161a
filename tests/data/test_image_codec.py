"""Codecs between images and latents: exact inverses and statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.data.image_codec import (
    ImageCodec,
    LatentStatistics,
    PixelUnshuffle,
    StandardizedCodec,
    grey_levels,
    identity_codec,
    unit_images,
)
from fedsynth.errors import ConfigError, DataError


def grey(rows: int = 5, shape=(1, 28, 28), seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, *shape), generator=draws, dtype=torch.uint8)


def standardized(codec, images, per_channel: bool) -> StandardizedCodec:
    return StandardizedCodec(codec, LatentStatistics.fit(codec.encode(images), per_channel))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_unshuffling_is_undone_bit_for_bit(channels, rows, columns, factor, seed):
    shape = (channels, rows * factor, columns * factor)
    codec, images = PixelUnshuffle(shape, factor), unit_images(grey(3, shape, seed))
    latents = codec.encode(images)
    assert latents.shape == (3, *codec.latent_shape)
    assert math.prod(codec.latent_shape) == math.prod(shape)
    assert torch.equal(codec.decode(latents), images)


def test_a_latent_channel_is_every_second_pixel():
    images = unit_images(grey())
    latents = PixelUnshuffle((1, 28, 28), 2).encode(images)
    for channel, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        assert torch.equal(latents[:, channel], images[:, 0, row::2, column::2])


def test_the_identity_codec_changes_nothing():
    codec, images = identity_codec((3, 8, 6)), unit_images(grey(2, (3, 8, 6)))
    assert codec.latent_shape == (3, 8, 6)
    assert torch.equal(codec.encode(images), images)
    assert torch.equal(codec.decode(images), images)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("factor", [1, 2])
def test_every_grey_level_survives_the_way_to_standardized_latents_and_back(factor, per_channel):
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(3, 1, 1, 1)
    images[1] = images[1].flip(-1)
    codec = standardized(PixelUnshuffle((1, 16, 16), factor), unit_images(images), per_channel)
    assert torch.equal(grey_levels(codec.decode(codec.encode(unit_images(images)))), images)


@pytest.mark.parametrize("sigma_data", [0.5, 1.0])
def test_latents_of_the_training_images_have_mean_zero_and_the_deviation_of_the_data(sigma_data):
    images, inner = unit_images(grey(50)).double(), PixelUnshuffle((1, 28, 28), 2)
    for per_channel, dims in ((True, (0, 2, 3)), (False, (0, 1, 2, 3))):
        statistics = LatentStatistics.fit(inner.encode(images), per_channel)
        latents = StandardizedCodec(inner, statistics, sigma_data).encode(images)
        mean, std = latents.mean(dims), latents.std(dims, correction=0)
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-9, rtol=0)
        torch.testing.assert_close(std, torch.full_like(std, sigma_data))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.booleans(), st.floats(-1e4, 1e4))
def test_statistics_of_batches_equal_numpys_of_the_whole(sizes, per_channel, offset):
    draws = torch.Generator().manual_seed(sum(sizes))
    batches = [torch.randn(n, 3, 2, 2, generator=draws, dtype=torch.float64) + offset for n in sizes]
    whole = np.concatenate([b.numpy() for b in batches])
    axes = (0, 2, 3) if per_channel else (0, 1, 2, 3)
    statistics = LatentStatistics.fit(iter(batches), per_channel)
    np.testing.assert_allclose(statistics.mean.numpy(), np.atleast_1d(whole.mean(axes)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(statistics.std.numpy(), np.atleast_1d(whole.std(axes)), rtol=1e-7)


def test_statistics_survive_their_tensors():
    statistics = LatentStatistics.fit(torch.rand(4, 3, 2, 2), per_channel=True)
    again = LatentStatistics(**statistics.to_tensors())
    assert torch.equal(again.mean, statistics.mean)
    assert torch.equal(again.std, statistics.std)


@pytest.mark.parametrize("codec", [identity_codec((1, 4, 4)), PixelUnshuffle((1, 4, 4), 2)])
def test_codecs_share_one_interface_and_the_type_of_the_images(codec):
    wrapped = standardized(codec, torch.rand(9, 1, 4, 4), per_channel=True)
    for each in (codec, wrapped):
        assert isinstance(each, ImageCodec)
        for dtype in (torch.float32, torch.float64):
            latents = each.encode(torch.rand(2, 1, 4, 4, dtype=dtype), torch.Generator())
            assert latents.shape == (2, *each.latent_shape)
            assert latents.dtype == each.decode(latents).dtype == dtype


def test_grey_levels_are_rounded_and_clipped():
    values = torch.tensor([-0.3, 0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.7]).reshape(1, 1, 1, 6)
    assert grey_levels(values).flatten().tolist() == [0, 0, 0, 1, 255, 255]


@pytest.mark.parametrize(
    ("shape", "factor", "said"),
    [((1, 28, 27), 2, "divide"), ((1, 28, 28), 0, "divide"), ((1, 28), 2, "image_shape"), ((0, 4, 4), 2, "image_shape")],
)  # fmt: skip
def test_impossible_codecs_are_refused(shape, factor, said):
    with pytest.raises(ConfigError, match=said):
        PixelUnshuffle(shape, factor)


def test_images_of_another_size_or_type_are_refused():
    codec = PixelUnshuffle((1, 4, 4), 2)
    with pytest.raises(DataError, match=r"image must be .* \[n, 1, 4, 4\]"):
        codec.encode(torch.rand(2, 1, 6, 4))
    with pytest.raises(DataError, match="floating-point"):
        codec.encode(grey(2, (1, 4, 4)))
    with pytest.raises(DataError, match="latent must be"):
        codec.decode(torch.rand(2, 1, 4, 4))
    with pytest.raises(DataError, match="latent must be"):
        standardized(codec, torch.rand(9, 1, 4, 4), True).decode(torch.rand(2, 1, 4, 4))
    with pytest.raises(DataError, match="uint8"):
        unit_images(torch.rand(1, 1, 4, 4))
    for bad in (torch.full((1, 1, 2, 2), math.nan), torch.zeros(1, 1, 2, 2, dtype=torch.int64)):
        with pytest.raises(DataError, match="finite"):
            grey_levels(bad)


def test_useless_statistics_are_refused():
    with pytest.raises(DataError, match="never varies"):
        LatentStatistics.fit(torch.ones(3, 2, 2, 2), per_channel=True)
    with pytest.raises(DataError, match="finite"):
        LatentStatistics.fit(torch.full((3, 2, 2, 2), math.nan), per_channel=False)
    with pytest.raises(DataError, match="at least one"):
        LatentStatistics.fit([], per_channel=True)
    with pytest.raises(DataError, match="one length"):
        LatentStatistics(torch.zeros(2), torch.ones(3))
    two = LatentStatistics(torch.zeros(2), torch.ones(2))
    with pytest.raises(ConfigError, match="channels"):
        StandardizedCodec(PixelUnshuffle((1, 4, 4), 2), two)
    with pytest.raises(ConfigError, match="sigma_data"):
        StandardizedCodec(PixelUnshuffle((1, 4, 4), 2), LatentStatistics(torch.zeros(4), torch.ones(4)), 0.0)
