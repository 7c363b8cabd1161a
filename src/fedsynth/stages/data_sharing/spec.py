"""released image sets of two to eight sites → their union, on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.stage import Side, Stage

FURTHER = ("third", "fourth", "fifth", "sixth", "seventh", "eighth")
SITES = ("first", "second", *FURTHER)


@dataclass(frozen=True)
class DataSharingSettings:
    """There is nothing to choose."""


def _check_suppliers(settings: DataSharingSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """No site twice: its images would count double."""
    seen: dict[str, str] = {}
    for role, supplier in suppliers.items():
        other = seen.setdefault(supplier.name, role)
        if other != role:
            raise ConfigError(
                f"{path}.inputs.{role} must name a set of its own, got {supplier.name}, which is also {other}.",
                key=f"{path}.inputs.{role}",
            )


STAGE = Stage(
    kind="data_sharing",
    settings=DataSharingSettings,
    runs="fedsynth.stages.data_sharing.run:run",
    side=Side.SERVER,
    roles=("first", "second"),
    optional_roles=FURTHER,
    accepts=dict.fromkeys(SITES, ("select_images",)),
    check_suppliers=_check_suppliers,
)
