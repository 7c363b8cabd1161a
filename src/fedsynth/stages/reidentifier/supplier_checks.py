"""What a stage that asks an identity network demands of the images it was trained on. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.errors import ConfigError

#: Settings of ``xray_images`` that decide which patients of a data set are in training.
SPLIT_SETTINGS = ("split", "split_fractions", "split_seed", "num_sites", "site_seed")


def check_identity_split(suppliers: Mapping[str, Any], path: str) -> None:
    """Refuse an identity network trained on another split of the data set that the images are of.

    One network may serve several sites (PSO-secure sharing trains one on all its corpora), so its images need not be
    those of the stage. But cut otherwise, they hold persons that are held out here: verdicts and audits would be of
    persons it has learned by heart. What the plan cannot tell, ``check_strangers`` refuses once the images are there.

    Args:
        suppliers: With ``images``; without ``reidentifier`` nothing is checked.
        path: The config path of the stage.

    Raises:
        ConfigError: Naming the settings that differ.
    """
    images, network = suppliers["images"], suppliers.get("reidentifier")
    if network is None or network.inputs.get("images") == images.name:
        return
    theirs, mine = network.suppliers["images"].settings, images.settings
    if theirs.dataset != mine.dataset:
        return  # other patients
    differing = [
        f"{name} {getattr(theirs, name)} and {getattr(mine, name)}"
        for name in SPLIT_SETTINGS
        if getattr(theirs, name) != getattr(mine, name)
    ]
    if differing:
        raise ConfigError(
            f"{path}.inputs.reidentifier={network.name} is trained on {network.inputs['images']}, which divides the "
            f"patients of {mine.dataset} otherwise than {images.name}: {', '.join(differing)}. Persons held out here "
            "may have trained it. Train it on the same images, or divide both alike.",
            key=f"{path}.inputs.reidentifier",
        )
