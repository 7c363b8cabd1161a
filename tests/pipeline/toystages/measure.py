"""Private numbers of the clients."""

from __future__ import annotations

from toystages.behavior import ToySettings

from fedsynth.pipeline.stage import Side, Stage

STAGE = Stage(
    kind="measure", settings=ToySettings, runs="toystages.behavior:run", side=Side.CLIENT, data=("mitdb",)
)
