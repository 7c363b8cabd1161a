"""Sets chosen as the code released with PSO-secure sharing does it: that code only adds 1 to the loss of a flagged
candidate, so that one may still be chosen. No table may call such a set simply filtered."""

from __future__ import annotations

import re
from collections.abc import Collection

#: The ``filter`` of ``select_images``.
RELEASED_CODE = "released_code"
#: Short: figures hold it, too. The section on selection says more.
MAY_HOLD = "(may hold flagged)"
EMULATED = f"released-code filter {MAY_HOLD}"


def emulated_title(title: str) -> str:
    """``DiADM, released-code filter (may hold flagged), site 0`` of ``DiADM, filtered, site 0``.

    Different titles stay different: what the arm itself says remains.
    """
    if re.search(r"\bfiltered\b", title):
        return re.sub(r"\bfiltered\b", EMULATED, title, count=1)
    if "released code" in title:
        return title.replace("released code", f"released code {MAY_HOLD}", 1)
    return f"{title}, {EMULATED}"


def title_among(title: str, arm: str, emulated: Collection[str]) -> str:
    """The title of an arm, where ``emulated`` holds those of such sets."""
    return emulated_title(title) if arm in emulated else title
