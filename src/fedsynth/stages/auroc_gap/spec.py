"""one classifier of real images, up to twelve of synthetic ones → differences in macro AUROC, Holm-adjusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.compared_systems import check_comparable

#: Roles of the synthetic sets after the first; which is which does not matter, each carries its own arm.
MORE_SYNTHETIC = tuple(f"synthetic_{number}" for number in range(2, 13))


@dataclass(frozen=True)
class AUROCGapSettings:
    seed: int = setting(minimum=0)
    num_bootstrap: int = setting(minimum=1)


def _check_suppliers(settings: AUROCGapSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Classifiers tested on the same real images, each with an arm of its own."""
    check_comparable(
        suppliers, path, reference="real", noun="classifier", relation="tested on", shared="images"
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
