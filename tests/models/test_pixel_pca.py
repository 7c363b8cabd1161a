"""Principal components of pixels against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from fedsynth.errors import DataError
from fedsynth.models.pixel_pca import LARGEST_SIDE, fit_pixel_pca


def images(num: int, side: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, 1, side, side), dtype=torch.uint8, generator=stream)


def test_coordinates_are_those_of_scikit_learn_up_to_sign() -> None:
    train, other = images(50, 6), images(9, 6, seed=1)
    found = fit_pixel_pca(train, 8, batch_size=16).features(other, 4).double()
    reference = PCA(8).fit((train.double() / 255).flatten(1).numpy())
    wanted = torch.from_numpy(reference.transform((other.double() / 255).flatten(1).numpy()))
    torch.testing.assert_close(found.abs(), wanted.abs(), rtol=1e-4, atol=1e-5)


def test_all_components_keep_every_distance() -> None:
    train = images(60, 5)
    pca = fit_pixel_pca(train, 25)
    assert pca.name == "pixel_pca25"
    found = torch.cdist(pca.features(train, 7).double(), pca.features(train, 60).double())
    level = (train.double() / 255).flatten(1)
    torch.testing.assert_close(found, torch.cdist(level, level), rtol=1e-4, atol=1e-4)


def test_components_are_at_most_one_fewer_than_the_images() -> None:
    assert fit_pixel_pca(images(5, 6), 64).dim == 4


def test_large_images_are_averaged_over_blocks_first() -> None:
    image = images(6, 2 * LARGEST_SIDE)
    small = nn.functional.avg_pool2d(image.double() / 255, 2).flatten(1)
    found = fit_pixel_pca(image, 5).features(image, 6).double()
    torch.testing.assert_close(torch.cdist(found, found), torch.cdist(small, small), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("image", [images(1, 4), torch.zeros(4, 1, 4, 4)])
def test_one_image_or_floats_are_refused(image: Tensor) -> None:
    with pytest.raises(DataError):
        fit_pixel_pca(image)
