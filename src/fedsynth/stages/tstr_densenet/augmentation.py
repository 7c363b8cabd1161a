"""Views of images: random ones to train on, ten crops to test on. Draws come from torch's global stream."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as nnf
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.functional import hflip, resize, resized_crop, ten_crop

#: torchvision's defaults, which the paper's classifier uses.
CROP_AREA, CROP_ASPECT, FLIP_SHARE = [0.08, 1.0], [3 / 4, 4 / 3], 0.5


def shifted(image: Float[Tensor, "b c h w"], max_shift: int) -> Float[Tensor, "b c h w"]:
    """Each image moved by up to ``max_shift`` whole pixels along either side, its border repeated.

    Never flipped: a heart on the right is another finding.
    """
    if max_shift == 0:
        return image
    num, _, height, width = image.shape
    padded = nnf.pad(image, (max_shift,) * 4, mode="replicate")
    offset = torch.randint(2 * max_shift + 1, (2, num, 1)).to(image.device)
    rows = (offset[0] + torch.arange(height, device=image.device)).view(num, 1, height, 1)
    columns = (offset[1] + torch.arange(width, device=image.device)).view(num, 1, 1, width)
    which = torch.arange(num, device=image.device).view(num, 1, 1, 1)
    channel = torch.arange(image.shape[1], device=image.device).view(1, -1, 1, 1)
    return padded[which, channel, rows, columns]


def cropped_and_flipped(image: Float[Tensor, "b c h w"], size: int) -> Float[Tensor, "b c s s"]:
    """torchvision's RandomResizedCrop and a flip of every second image, as the paper's classifier is trained.

    Args:
        image: Gray levels.
        size: Side of a crop.
    """
    views = []
    for one in image:
        box = RandomResizedCrop.get_params(one, CROP_AREA, CROP_ASPECT)
        view = resized_crop(one, *box, size=[size, size], antialias=True)
        views.append(hflip(view) if float(torch.rand(())) < FLIP_SHARE else view)
    return torch.stack(views)


def ten_views(image: Float[Tensor, "b c h w"], resize_size: int, size: int) -> list[Float[Tensor, "b c s s"]]:
    """Four corners and the center of the image resized to ``resize_size``, and their mirror images."""
    return list(ten_crop(resize(image, [resize_size, resize_size], antialias=True), [size, size]))
