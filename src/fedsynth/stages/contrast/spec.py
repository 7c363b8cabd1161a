"""two systems → paired bootstrap differences on the same test records, Holm-adjusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.system_arms import SYSTEM_KINDS, SYSTEM_THRESHOLDS, arm_setting, check_arm


@dataclass(frozen=True)
class ContrastSettings:
    seed: int = setting(minimum=0)
    candidate_arm: str | None = arm_setting()
    baseline_arm: str | None = arm_setting()
    num_bootstrap: int = setting(minimum=1)
    num_bins: int = setting(minimum=1)


def _check_suppliers(settings: ContrastSettings, suppliers: Mapping[str, Any], path: str) -> None:
    check_arm(settings.candidate_arm, suppliers["candidate"], f"{path}.candidate_arm")
    check_arm(settings.baseline_arm, suppliers["baseline"], f"{path}.baseline_arm")


STAGE = Stage(
    kind="contrast",
    settings=ContrastSettings,
    runs="fedsynth.stages.contrast.run:run",
    side=Side.AUDITOR,
    roles=("candidate", "baseline"),
    accepts={"candidate": SYSTEM_KINDS, "baseline": SYSTEM_KINDS},
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: (
        SYSTEM_THRESHOLDS,
        "every number of the contrast: computed on private test records",
    ),
    check_suppliers=_check_suppliers,
)
