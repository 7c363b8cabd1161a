"""A trained stage of a server, with no input and no data. Every rank takes part."""

from __future__ import annotations

from fedsynth.pipeline.stage import Side, Stage
from toystages.behavior import ToySettings

STAGE = Stage(
    kind="train", settings=ToySettings, runs="toystages.behavior:run", side=Side.SERVER, trains=True
)
