"""A server that reads all it can of a release."""

from __future__ import annotations

from fedsynth.pipeline.stage import Side, Stage
from toystages.behavior import ToySettings

STAGE = Stage(
    kind="reader", settings=ToySettings, runs="toystages.keeper:read", side=Side.SERVER, roles=("release",)
)
