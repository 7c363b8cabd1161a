"""latents → DP release, on the clients: noisy shard means (Eqs. 18–21), or moments that pay for everything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage
from fedsynth.privacy.composition import check_shares
from fedsynth.privacy.parameters import PrivacyParameterError

# e^ε is beyond any meaning long before; such a release would pass for a protected one.
LARGEST_EPSILON = 1e6
# Norms in latent units. Squares of what lies beyond are infinite or zero in the 32 bits of a release.
SMALLEST_NORM, LARGEST_NORM = 1e-6, 1e6
SHARES = ("radius", "subspace", "counts", "histogram", "means", "second_moments")


@dataclass(frozen=True)
class ReleaseSettings:
    seed: int = setting(minimum=0)
    secure_noise: bool = setting()
    variant: str = setting(one_of=("means", "moments"), remedy="The paper's is means.")
    epsilon: float = setting(
        above=0.0,
        allow_infinite=True,
        remedy="The paper uses 1, 2, 4 and 8; .inf releases without noise.",
    )
    delta: float = setting(above=0.0, below=1.0, remedy="Well below 1 / records; the default is 1e-5.")
    # variant: means
    num_shards: int = setting(minimum=1, remedy="The paper uses 4.")
    min_shard_size: int = setting(minimum=1)
    clip_percentile: float = setting(above=0.0, maximum=100.0)
    clip_radius: float | None = setting(
        minimum=SMALLEST_NORM, maximum=LARGEST_NORM, remedy="Null takes a percentile of validation norms."
    )
    # variant: moments
    composition: str = setting(one_of=("gdp", "zcdp", "rdp", "basic"), remedy="gdp is exact.")
    shares: dict[str, float] = setting()
    radius_low: float = setting(minimum=SMALLEST_NORM, maximum=LARGEST_NORM)
    radius_high: float = setting(minimum=SMALLEST_NORM, maximum=LARGEST_NORM)
    radius_steps: int = setting(minimum=1, maximum=30)
    radius_quantile: float = setting(above=0.0, below=1.0)
    radius_slack: float = setting(minimum=0.01, maximum=100.0, remedy="Typical: 1.1.")
    num_rounds: int = setting(minimum=1, maximum=100, remedy="Typical: 4; each is paid for.")
    max_rank: int = setting(minimum=1)
    noise_edge: float = setting(above=0.0, maximum=1000.0, remedy="Typical: 1.2.")
    num_bins: int = setting(minimum=1, maximum=65536, remedy="Typical: 64.")
    num_components: int = setting(minimum=1, maximum=1000, remedy="Typical: 1 to 8.")
    min_cell_records: int = setting(minimum=1)
    min_class_records: int = setting(minimum=1)
    clip_factor: float = setting(minimum=0.01, maximum=100.0, remedy="Typical: 1.")

    def check(self, path: str) -> None:
        if LARGEST_EPSILON < self.epsilon < math.inf:
            raise ConfigError(
                f"{path}.epsilon must be ≤ {LARGEST_EPSILON:g} or .inf, got {self.epsilon:g}: that is no privacy. "
                "Say .inf, which keeps the release private.",
                key=f"{path}.epsilon",
            )
        if self.radius_low >= self.radius_high:
            raise ConfigError(
                f"{path}.radius_low must be below radius_high={self.radius_high:g}, got {self.radius_low:g}. "
                "They bound the public candidates of a clipping radius; the defaults are 0.01 and 1000.",
                key=f"{path}.radius_low",
            )
        try:
            check_shares(self.shares, SHARES, f"{path}.shares")
        except PrivacyParameterError as error:
            raise ConfigError(str(error), key=f"{path}.shares") from error

    @property
    def is_private(self) -> bool:
        """Whether there is noise."""
        return math.isfinite(self.epsilon)


def _yields(settings: ReleaseSettings, inputs: Mapping[str, Sensitivity]) -> Sensitivity:
    return Sensitivity.RELEASED if settings.is_private else Sensitivity.PRIVATE


def _price(settings: ReleaseSettings) -> tuple[float, float] | None:
    """Nothing leaves the clients without noise: that arm is kept from the server."""
    return (settings.epsilon, settings.delta) if settings.is_private else None


def _uncovered(settings: ReleaseSettings) -> tuple[str, ...]:
    if not settings.is_private:
        return ("everything: this arm adds no noise and is kept from the server",)
    if settings.variant == "moments":
        return ("the number of records of each client",)
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
    price=_price,
)
