"""one classifier of real images, up to twelve of synthetic ones → differences in macro AUROC, Holm-adjusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always

#: Roles of the synthetic sets after the first; which is which does not matter, each carries its own arm.
MORE_SYNTHETIC = tuple(f"synthetic_{number}" for number in range(2, 13))


@dataclass(frozen=True)
class AUROCGapSettings:
    seed: int = setting(minimum=0)
    num_bootstrap: int = setting(minimum=1)


def _check_suppliers(settings: AUROCGapSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Classifiers tested on the same real images, each with an arm of its own."""
    real = suppliers["real"]
    arms = {real.settings.arm: "real"}
    for role, one in suppliers.items():
        if role == "real":
            continue
        if one.inputs["images"] != real.inputs["images"]:
            raise ConfigError(
                f"{path}.inputs.{role} must name a classifier tested on {real.inputs['images']}, as that of the real "
                f"images, got {one.name} tested on {one.inputs['images']}.",
                key=f"{path}.inputs.{role}",
            )
        other = arms.setdefault(one.settings.arm, role)
        if other != role:
            raise ConfigError(
                f"{path}.inputs.{role} must name a classifier with an arm of its own, got {one.name}, whose arm "
                f"{one.settings.arm!r} is also that of {other}.",
                key=f"{path}.inputs.{role}",
            )


STAGE = Stage(
    kind="auroc_gap",
    settings=AUROCGapSettings,
    runs="fedsynth.stages.auroc_gap.run:run",
    side=Side.AUDITOR,
    roles=("real", "synthetic"),
    optional_roles=MORE_SYNTHETIC,
    accepts=dict.fromkeys(("real", "synthetic", *MORE_SYNTHETIC), ("tstr_densenet",)),
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("every number of the comparison: computed on private images",),
    check_suppliers=_check_suppliers,
)
