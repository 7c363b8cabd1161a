"""one candidate and up to 16 baselines → paired differences over the same participants, Holm-adjusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always

#: Roles of the baselines after the first; which is which does not matter, each carries its own arm.
MORE_BASELINES = tuple(f"baseline_{number}" for number in range(2, 17))
SYSTEM = ("privacy_performance",)


@dataclass(frozen=True)
class SystemContrastSettings:
    seed: int = setting(minimum=0)
    num_bootstrap: int = setting(minimum=1)


def _check_suppliers(settings: SystemContrastSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Systems of one data set, each named by an arm of its own."""
    candidate = suppliers["candidate"]
    arms = {candidate.settings.arm: "candidate"}
    for role, system in suppliers.items():
        if role == "candidate":
            continue
        if system.inputs["clients"] != candidate.inputs["clients"]:
            raise ConfigError(
                f"{path}.inputs.{role} must name a system of {candidate.inputs['clients']}, the records of the "
                f"candidate, got {system.name} of {system.inputs['clients']}.",
                key=f"{path}.inputs.{role}",
            )
        other = arms.setdefault(system.settings.arm, role)
        if other != role:
            raise ConfigError(
                f"{path}.inputs.{role} must name a system with an arm of its own, got {system.name}, whose arm "
                f"{system.settings.arm!r} is also that of {other}.",
                key=f"{path}.inputs.{role}",
            )


STAGE = Stage(
    kind="system_contrast",
    settings=SystemContrastSettings,
    runs="fedsynth.stages.system_contrast.run:run",
    side=Side.AUDITOR,
    roles=("candidate", "baseline"),
    optional_roles=MORE_BASELINES,
    accepts=dict.fromkeys(("candidate", "baseline", *MORE_BASELINES), SYSTEM),
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("every number of the contrast: computed on private records",),
    check_suppliers=_check_suppliers,
)
