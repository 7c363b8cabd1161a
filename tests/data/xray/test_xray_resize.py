"""Resizing against an independent library, and what it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedsynth.data.xray.resize import resize_images
from fedsynth.errors import ConfigError


@pytest.fixture
def pixels() -> np.ndarray:
    smooth = np.cumsum(np.cumsum(np.random.default_rng(0).normal(size=(5, 64, 64)), 1), 2)
    smooth -= smooth.min()
    return (smooth / smooth.max() * 255).astype(np.uint8)


def test_the_stored_size_is_returned_bit_for_bit(pixels: np.ndarray) -> None:
    np.testing.assert_array_equal(resize_images(pixels, 64), pixels)


@pytest.mark.parametrize("size", [28, 32, 45])
def test_reduction_is_pillows_to_one_grey_level(pixels: np.ndarray, size: int) -> None:
    # Pillow's BILINEAR widens its triangle with the reduction too; it rounds once an axis, so one level may differ.
    for image, found in zip(pixels, resize_images(pixels, size), strict=True):
        wanted = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
        assert abs(found.astype(int) - wanted.astype(int)).max() <= 1


def test_a_fine_checkerboard_becomes_grey() -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)[None]
    inner = resize_images(board, 16)[0, 2:-2, 2:-2]
    assert abs(inner.astype(float) - 127.5).max() < 3  # aliasing would leave black or white


def test_many_images_are_resized_one_by_one(pixels: np.ndarray) -> None:
    many = np.tile(pixels, (600, 1, 1))  # more than one part
    np.testing.assert_array_equal(resize_images(many, 16), np.tile(resize_images(pixels, 16), (600, 1, 1)))


def test_upsampling_must_be_asked_for(pixels: np.ndarray) -> None:
    with pytest.raises(
        ConfigError, match=r"image_size=96 exceeds the stored size of 64.*allow_upsampling=true"
    ):
        resize_images(pixels, 96)
    assert resize_images(pixels, 96, allow_upsampling=True).shape == (5, 96, 96)
