"""What a server computes."""

from __future__ import annotations

from fedsynth.pipeline.stage import Side, Stage
from toystages.behavior import ToySettings

STAGE = Stage(
    kind="total",
    settings=ToySettings,
    runs="toystages.behavior:run",
    side=Side.SERVER,
    roles=("release",),
    optional_roles=("extra",),
)
