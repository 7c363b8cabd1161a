"""A number that depends on a file: public."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Outcome, Side, Stage, StageContext


@dataclass(frozen=True)
class WeightedSettings:
    weights: str | None = setting(is_file=True)


def run(settings: WeightedSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    (context.output / "result.json").write_text("0" if settings.weights is None else "1")
    return Outcome()


STAGE = Stage(kind="weighted", settings=WeightedSettings, runs="toystages.weighted:run", side=Side.SERVER)
