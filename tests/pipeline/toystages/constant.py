"""A number from nowhere: public."""

from __future__ import annotations

from toystages.behavior import ToySettings

from fedsynth.pipeline.stage import Side, Stage

STAGE = Stage(kind="constant", settings=ToySettings, runs="toystages.behavior:run", side=Side.SERVER)
