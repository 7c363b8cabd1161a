"""A server that reads private records: the planner must refuse it."""

from __future__ import annotations

from fedsynth.pipeline.stage import Side, Stage
from toystages.behavior import ToySettings

STAGE = Stage(
    kind="peek", settings=ToySettings, runs="toystages.behavior:run", side=Side.SERVER, data=("mitdb",)
)
