"""Checks of a network's shape that need no torch, shared by the stages that build encoders."""

from __future__ import annotations

from collections.abc import Sequence

from fedsynth.errors import ConfigError


def check_backbone(backbone: str, path: str) -> None:
    """Refuse what is neither ``conv`` nor ``timm:NAME``; whether timm knows the name shows when it is built.

    Raises:
        ConfigError: Naming the key.
    """
    family, _, name = backbone.partition(":")
    if backbone != "conv" and not (family == "timm" and name.strip()):
        raise ConfigError(
            f"{path}.backbone must be conv or timm:NAME, e.g. timm:resnet18, got {backbone!r}. "
            "Set model.backbone.",
            key=f"{path}.backbone",
        )


def check_channels(name: str, channels: Sequence[int], path: str) -> None:
    """Refuse an encoder without blocks.

    Raises:
        ConfigError: Naming the key.
    """
    if not channels:
        raise ConfigError(
            f"{path}.{name} must hold at least one number, got []. Set model.{name}, e.g. to [32, 64, 128].",
            key=f"{path}.{name}",
        )
