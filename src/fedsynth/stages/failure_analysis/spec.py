"""two TSTR classifiers → score collapse, hard negatives, relation of scores to the real latents."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always


@dataclass(frozen=True)
class FailureAnalysisSettings:
    num_neighbors: int = setting(minimum=1)
    hard_negative_fraction: float = setting(above=0.0, maximum=1.0)
    borderline_low: float = setting(minimum=0.0, maximum=1.0)
    borderline_high: float = setting(minimum=0.0, maximum=1.0)
    num_decimals: int = setting(minimum=1, maximum=12)

    def check(self, path: str) -> None:
        if self.borderline_low >= self.borderline_high:
            raise ConfigError(
                f"{path}.borderline_low must be below borderline_high, got {self.borderline_low} and "
                f"{self.borderline_high}. The paper's share of positives runs from 0.2 to 0.8.",
                key=f"{path}.borderline_low",
            )


STAGE = Stage(
    kind="failure_analysis",
    settings=FailureAnalysisSettings,
    runs="fedsynth.stages.failure_analysis.run:run",
    side=Side.AUDITOR,
    roles=("latents", "real", "synthetic"),
    accepts={"latents": ("encode",), "real": ("tstr_mlp",), "synthetic": ("tstr_mlp",)},
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("every number of the failure analysis: computed on private records",),
)
