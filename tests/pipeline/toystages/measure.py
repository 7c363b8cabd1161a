"""Private numbers of the clients."""

from __future__ import annotations

from fedsynth.pipeline.stage import Side, Stage
from toystages.behavior import ToySettings

STAGE = Stage(
    kind="measure", settings=ToySettings, runs="toystages.behavior:run", side=Side.CLIENT, data=("mitdb",)
)
