"""The image systems of PSO-secure sharing by arm: titles, order, and which of the paper's rows an arm is.

An arm starts with one of ``SYSTEMS``; what follows it (``_unfiltered``, ``_drop``, ``_a``) is told in words.
"""

from __future__ import annotations

import re

#: In the order of the paper's tables.
SYSTEMS = {
    "real": "real images",
    "vae_reconstruction": "autoencoder reconstruction",
    "edm2": "EDM-2",
    "edm2_ag": "EDM-2, autoguidance",
    "diadm": "DiADM",
    "diadm_features": "DiADM + features",
    "data_sharing": "shared sets of all sites",
}
FILTERED = "filtered"
#: In the name of an arm whose classifiers learn from what C_r says of each image: ours, not the paper's.
SOFT_ARM = re.compile(r"_soft(?:_|$|(?=, ))")
SOFT_LABELS = "soft labels"


def base_of(arm: str) -> str | None:
    """``diadm_features`` of ``diadm_features_unfiltered``; None for an arm that is no image system."""
    found = [name for name in SYSTEMS if arm == name or arm.startswith(f"{name}_")]
    return max(found, key=len, default=None)


def image_title(arm: str) -> str | None:
    """``DiADM + features, filtered, site 0``; None for an arm that is no image system."""
    base = base_of(arm)
    if base is None:
        return None
    rest = re.sub(SOFT_ARM, f", {SOFT_LABELS}, ", arm.removeprefix(base).replace("_site_", ", site "))
    rest = rest.strip("_, ").replace(", , ", ", ").replace("_", " ")
    return SYSTEMS[base] + (f", {rest}" if rest else "")


def paper_arm(arm: str, *, is_filtered: bool, has_soft_labels: bool = False) -> str:
    """The paper's row an arm stands beside: ``diadm_features``, or ``diadm_features_filtered`` (the paper's "Ours").

    A set with soft labels, whatever its arm is called, stands beside none: what is returned is no row of the paper.
    """
    if has_soft_labels:
        return f"{arm} ({SOFT_LABELS})"
    base = base_of(arm) or arm
    return f"{base}_{FILTERED}" if is_filtered and base != "data_sharing" else base


def image_rank(arm: str) -> tuple[int, str]:
    """Sorts arms as the paper does, variants of one system by name, other arms last."""
    base = base_of(arm)
    return (list(SYSTEMS).index(base) if base else len(SYSTEMS)), arm
