"""one system → calibration on test records before and after temperature scaling (Guo et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.system_arms import SYSTEM_KINDS, arm_setting, check_arm


@dataclass(frozen=True)
class TemperatureScalingSettings:
    arm: str | None = arm_setting()
    num_bins: int = setting(minimum=1)


STAGE = Stage(
    kind="temperature_scaling",
    settings=TemperatureScalingSettings,
    runs="fedsynth.stages.temperature_scaling.run:run",
    side=Side.AUDITOR,
    roles=("system",),
    accepts={"system": SYSTEM_KINDS},
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: (
        "validation records, used to fit the temperature",
        "calibration metrics: computed on private test records",
    ),
    check_suppliers=lambda settings, suppliers, path: check_arm(
        settings.arm, suppliers["system"], f"{path}.arm"
    ),
)
