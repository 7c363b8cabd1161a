"""The network that the settings of a classifier describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.models.densenet import DenseNetClassifier, slim_densenet, timm_densenet
from fedsynth.models.inputs import ModelInputError
from fedsynth.stages.tstr_densenet.classifier_settings import SLIM, ClassifierSettings

#: The settings that shape the network.
SHAPE = ("network", "growth_rate", "block_config", "num_init_features", "input_size")


def network_shape(settings: ClassifierSettings) -> dict[str, Any]:
    """What `build_network` needs, as plain values."""
    return {name: getattr(settings, name) for name in SHAPE}


def build_network(
    shape: Mapping[str, Any], num_outputs: int, weights: str | None = None
) -> DenseNetClassifier:
    """A network of this shape.

    Args:
        shape: See `network_shape`.
        num_outputs: Classes or labels.
        weights: See `models.densenet.timm_densenet`; None to start from random ones, or to load others.

    Raises:
        ConfigError: Sizes or weights that do not fit.
    """
    size = shape["input_size"]
    try:
        if shape["network"] != SLIM:
            return timm_densenet(num_outputs, name=shape["network"], weights=weights, input_size=size)
        return slim_densenet(
            num_outputs,
            growth_rate=shape["growth_rate"],
            block_config=tuple(shape["block_config"]),
            num_init_features=shape["num_init_features"],
            input_size=size,
        )
    except ModelInputError as error:
        raise ConfigError(str(error), key="image_classifier.network") from error
