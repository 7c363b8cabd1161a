"""DenseNets that classify gray images: a slim one for small images, timm's at the size of the paper.

Both take gray levels in [0, 1], normalize them and keep their pooled features apart from the linear head, since the
features of the classifier C_r of PSO-secure sharing serve as pseudo-conditions and in audits.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as nnf
from torchvision.models import DenseNet

from fedsynth.models.inputs import ModelInputError, require_floating, require_positive, require_shape

#: Means and deviations of ImageNet's three channels, with which its weights were trained.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Rough ones of chest radiographs. Not of the training set: all arms of a comparison see the same inputs.
GRAY_MEAN, GRAY_STD = (0.5,), (0.25,)
#: Below these sizes the last block has no pixel left.
SLIM_MIN_SIZE, TIMM_MIN_SIZE = 16, 32
IMAGENET = "imagenet"


class DenseNetClassifier(nn.Module):
    """Normalization, a trunk that pools features, and a linear head.

    Args:
        trunk: Maps normalized images [b, channels, h, w] to features [b, dim].
        dim: Length of the features.
        num_outputs: Classes or labels.
        mean: Of each channel the trunk takes; gray images are repeated to as many.
        std: Likewise.
        input_size: Images of another size are resized to this square (bilinear, antialiased); None leaves them.
        min_size: Without ``input_size``, smaller images are enlarged to this side.

    Raises:
        ModelInputError: A size below 1, or an ``input_size`` below ``min_size``.
    """

    mean: Float[Tensor, "1 c 1 1"]
    std: Float[Tensor, "1 c 1 1"]

    def __init__(
        self,
        trunk: nn.Module,
        dim: int,
        num_outputs: int,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        input_size: int | None = None,
        min_size: int = 1,
    ) -> None:
        super().__init__()
        require_positive("dim and num_outputs", dim, num_outputs)
        if input_size is not None and input_size < min_size:
            raise ModelInputError(f"input_size must be ≥ {min_size} for this network, got {input_size}.")
        self.trunk, self.dim, self.input_size, self.min_size = trunk, dim, input_size, min_size
        self.head = nn.Linear(dim, num_outputs)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)
        # Dense blocks train 1.4 times as fast in this layout on a CPU.
        self.to(memory_format=torch.channels_last)

    def features(self, image: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b d"]:
        """Pooled features of gray levels in [0, 1], before the head."""
        require_shape("image", image, None, 1, None, None)
        require_floating("image", image)
        size = self._size(image)
        if tuple(image.shape[2:]) != size:
            image = nnf.interpolate(image, size=size, mode="bilinear", antialias=True, align_corners=False)
        normalized = (image.expand(-1, self.mean.shape[1], -1, -1) - self.mean) / self.std
        return self.trunk(normalized.contiguous(memory_format=torch.channels_last))

    def forward(self, image: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b k"]:
        """Logits, one a class or label."""
        return self.head(self.features(image))

    def _size(self, image: Tensor) -> tuple[int, int]:
        if self.input_size is not None:
            return self.input_size, self.input_size
        return max(self.min_size, image.shape[2]), max(self.min_size, image.shape[3])


def slim_densenet(
    num_outputs: int,
    *,
    growth_rate: int = 12,
    block_config: Sequence[int] = (4, 4, 4),
    num_init_features: int = 24,
    input_size: int | None = None,
) -> DenseNetClassifier:
    """A DenseNet for images of about 28 to 64 pixels, from random weights.

    torchvision's dense blocks behind a stem that halves the image once (3 x 3, stride 2) rather than twice, so that
    28 pixels reach the last block as 3 x 3.

    Args:
        num_outputs: Classes or labels.
        growth_rate: Channels that each dense layer adds.
        block_config: Dense layers of each block; between blocks the image is halved.
        num_init_features: Channels of the stem.
        input_size: See `DenseNetClassifier`.

    Raises:
        ModelInputError: A size below 1.
    """
    require_positive(
        "growth_rate, num_init_features and block_config", growth_rate, num_init_features, *block_config
    )
    if len(block_config) > 4:
        raise ModelInputError(
            f"block_config must hold at most 4 blocks, each halves the image, got {list(block_config)}."
        )
    features: Any = DenseNet(growth_rate, tuple(block_config), num_init_features, num_classes=1).features
    features.conv0 = nn.Conv2d(1, num_init_features, 3, stride=2, padding=1, bias=False)
    features.pool0 = nn.Identity()
    nn.init.kaiming_normal_(features.conv0.weight)
    dim = features.norm5.num_features
    trunk = nn.Sequential(features, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return DenseNetClassifier(
        trunk, dim, num_outputs, mean=GRAY_MEAN, std=GRAY_STD, input_size=input_size, min_size=SLIM_MIN_SIZE
    )


def timm_densenet(
    num_outputs: int,
    *,
    name: str = "densenet121",
    weights: str | None = None,
    input_size: int | None = 224,
) -> DenseNetClassifier:
    """timm's DenseNet, gray images repeated to three channels normalized as ImageNet's.

    Args:
        num_outputs: Classes or labels; the head starts at random values whatever the weights.
        name: ``densenet121``, or another DenseNet of timm.
        weights: None starts from random values; ``imagenet`` lets timm fetch its weights; else a local file
            (``.safetensors``, ``.pth``) in the layout of timm or of torchvision.
        input_size: See `DenseNetClassifier`; images below 32 pixels are enlarged to 32.

    Raises:
        ModelInputError: No DenseNet of timm, weights that are absent, cannot be fetched or belong to another network.
    """
    import timm

    if not name.startswith("densenet") or not timm.is_model(name):
        known = ", ".join(timm.list_models("densenet*"))
        raise ModelInputError(f"timm has no DenseNet named {name!r}. It has: {known}.")
    trunk: Any = _fetched(name) if weights == IMAGENET else timm.create_model(name, num_classes=0)
    if weights not in (None, IMAGENET):
        load_trunk(trunk, Path(str(weights)).expanduser(), name)
    return DenseNetClassifier(
        trunk, trunk.num_features, num_outputs,
        mean=IMAGENET_MEAN, std=IMAGENET_STD, input_size=input_size, min_size=TIMM_MIN_SIZE,
    )  # fmt: skip


def _fetched(name: str) -> nn.Module:
    """timm's network with the ImageNet weights that timm fetches, or has fetched before."""
    import timm

    try:
        return timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # timm, huggingface_hub, requests: each fails in its own way
        raise ModelInputError(
            f"the ImageNet weights of {name} cannot be fetched ({type(error).__name__}). Fetch them once on a machine "
            "with internet access and give the file: image_classifier.weights=PATH; or null for random weights."
        ) from error


def load_trunk(trunk: nn.Module, path: Path, name: str) -> None:
    """Load all weights of a trunk from a file, whose classification head is ignored.

    Args:
        trunk: Loaded in place.
        path: ``.safetensors`` or a file of ``torch.save``.
        name: Of the network, for messages.

    Raises:
        ModelInputError: No such file, no weights in it, or those of another network.
    """
    if not path.is_file():
        raise ModelInputError(
            f"weights file {path} of {name} does not exist. Set image_classifier.weights to a local file of "
            "timm or torchvision, to imagenet (timm fetches it), or to null."
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            held: Any = load_file(path)
        else:
            held = torch.load(path, map_location="cpu", weights_only=True)
            held = held.get("state_dict", held) if isinstance(held, dict) else held
        found = {_timm_name(key): tensor for key, tensor in dict(held).items()}
    except (OSError, RuntimeError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise ModelInputError(f"weights file {path} cannot be read: {type(error).__name__}.") from error
    except Exception as error:  # safetensors has an error class of its own
        raise ModelInputError(f"weights file {path} cannot be read: {error}.") from error
    wanted = trunk.state_dict()
    # torchvision's published files are older than this counter, which only matters without momentum.
    wrong = [
        key
        for key, tensor in wanted.items()
        if not key.endswith("num_batches_tracked")
        and (key not in found or tuple(found[key].shape) != tuple(tensor.shape))
    ]
    more = [key for key in found if key not in wanted and not key.startswith("classifier.")]
    if wrong or more:
        raise ModelInputError(
            f"weights file {path} is not of {name}: {len(wrong)} of its {len(wanted)} tensors are missing or have "
            f"another shape, {len(more)} are not its own (first: {(wrong or more)[0]}). "
            "Set image_classifier.weights to a file of that network."
        )
    trunk.load_state_dict({key: found[key] for key in wanted if key in found}, strict=False)


def _timm_name(key: str) -> str:
    """torchvision's published files write ``denselayer1.norm.1`` for ``denselayer1.norm1``."""
    return re.sub(r"(denselayer\d+\.(?:norm|relu|conv))\.(\d)\.", r"\1\2.", key.removeprefix("module."))
