"""latents → DP release: clip, fixed shards, analytic Gaussian noise, on the clients (Eqs. 18–21)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage

# e^ε is beyond any meaning long before; such a release would pass for a protected one.
LARGEST_EPSILON = 1e6


@dataclass(frozen=True)
class ReleaseSettings:
    seed: int = setting(minimum=0)
    secure_noise: bool = setting()
    epsilon: float = setting(
        above=0.0,
        allow_infinite=True,
        remedy="The paper uses 1, 2, 4 and 8; .inf releases without noise.",
    )
    delta: float = setting(above=0.0, below=1.0, remedy="Well below 1 / records; the default is 1e-5.")
    num_shards: int = setting(minimum=1, remedy="The paper uses 4.")
    min_shard_size: int = setting(minimum=1)
    clip_percentile: float = setting(above=0.0, maximum=100.0)
    clip_radius: float | None = setting(above=0.0, remedy="Null takes a percentile of validation norms.")

    def check(self, path: str) -> None:
        if LARGEST_EPSILON < self.epsilon < math.inf:
            raise ConfigError(
                f"{path}.epsilon must be ≤ {LARGEST_EPSILON:g} or .inf, got {self.epsilon:g}: that is no privacy. "
                "Say .inf, which keeps the release private.",
                key=f"{path}.epsilon",
            )


def _yields(settings: ReleaseSettings, inputs: Mapping[str, Sensitivity]) -> Sensitivity:
    return Sensitivity.RELEASED if math.isfinite(settings.epsilon) else Sensitivity.PRIVATE


def _uncovered(settings: ReleaseSettings) -> tuple[str, ...]:
    if not math.isfinite(settings.epsilon):
        return ("everything: this arm adds no noise and is kept from the server",)
    radius = () if settings.clip_radius else ("the clipping radius, a percentile of validation latent norms",)
    return (
        "the number of records of each shard, class and client",
        "the diagonal covariance of each shard, released without noise",
        "the share of training latents longer than the clipping radius, reported as a number",
        *radius,
    )


STAGE = Stage(
    kind="release",
    settings=ReleaseSettings,
    runs="fedsynth.stages.release.run:run",
    side=Side.CLIENT,
    roles=("latents",),
    accepts={"latents": ("encode",)},
    yields=_yields,
    uncovered=_uncovered,
)
