"""Inputs that must be made of the same images, because their rows belong together. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsynth.errors import ConfigError


def check_made_of_same_images(suppliers: Mapping[str, Any], roles: Sequence[str], path: str) -> None:
    """Refuse an input made of other images than the input ``images``.

    Args:
        suppliers: The planned stages that supply the inputs, by role; a role that is not there is passed over.
        roles: Roles whose suppliers themselves have an input ``images``.
        path: The config path of the stage.

    Raises:
        ConfigError: Naming the role.
    """
    images = suppliers["images"].name
    for role in roles:
        if role not in suppliers:
            continue
        made_of = suppliers[role].inputs.get("images")
        if made_of != images:
            raise ConfigError(
                f"{path}.inputs.{role} must be made of the images of {images!r}, got {suppliers[role].name!r}, which "
                f"is made of those of {made_of!r}. Name one of the same site.",
                key=f"{path}.inputs.{role}",
            )
