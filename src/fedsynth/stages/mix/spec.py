"""release → mixture, on the server: align and aggregate shard means (Eqs. 22–24) or pool moments; sample (Eq. 25)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage


@dataclass(frozen=True)
class MixSettings:
    seed: int = setting(minimum=0)
    variance_floor: float = setting(above=0.0)
    subtract_noise: bool = setting(remedy="For shard means; moments are always corrected.")
    num_samples: int = setting(minimum=2)


STAGE = Stage(
    kind="mix",
    settings=MixSettings,
    runs="fedsynth.stages.mix.run:run",
    side=Side.SERVER,
    roles=("release",),
    accepts={"release": ("release",)},
)
