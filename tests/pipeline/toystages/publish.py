"""A release: infinite values stand for a release without noise, which stays private."""

from __future__ import annotations

import math

from fedsynth.pipeline.stage import Sensitivity, Side, Stage
from toystages.behavior import ToySettings

STAGE = Stage(
    kind="publish",
    settings=ToySettings,
    runs="toystages.behavior:run",
    side=Side.CLIENT,
    roles=("numbers",),
    yields=lambda settings, inputs: (
        Sensitivity.RELEASED if math.isfinite(settings.value) else Sensitivity.PRIVATE
    ),
    uncovered=lambda settings: ("the number of numbers",),
)
