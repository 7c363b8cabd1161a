"""one candidate and up to 16 baselines → paired differences over the same participants, Holm-adjusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.compared_systems import check_comparable

#: Roles of the baselines after the first; which is which does not matter, each carries its own arm.
MORE_BASELINES = tuple(f"baseline_{number}" for number in range(2, 17))
SYSTEM = ("privacy_performance",)


@dataclass(frozen=True)
class SystemContrastSettings:
    seed: int = setting(minimum=0)
    num_bootstrap: int = setting(minimum=1)


def _check_suppliers(settings: SystemContrastSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Systems of one data set, each named by an arm of its own."""
    check_comparable(suppliers, path, reference="candidate", noun="system", relation="of", shared="clients")


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
