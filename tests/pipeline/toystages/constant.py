"""A number from nowhere: public."""

from __future__ import annotations

from fedsynth.pipeline.stage import Side, Stage
from toystages.behavior import ToySettings

STAGE = Stage(kind="constant", settings=ToySettings, runs="toystages.behavior:run", side=Side.SERVER)
