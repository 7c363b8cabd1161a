"""synthetic → TSTR: 64→192→96→1 trained on one arm's latents, tested on real test latents (Eq. 32)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always


@dataclass(frozen=True)
class TSTRSettings:
    arm: str = setting()
    classifier_seeds: list[int] = setting(minimum=0)
    hidden_dims: list[int] = setting(minimum=1)
    dropout: float = setting(minimum=0.0, below=1.0)
    learning_rate: float = setting(above=0.0)
    batch_size: int = setting(minimum=2)
    num_bins: int = setting(minimum=1)
    samples_per_class: int | None = setting(minimum=1, remedy="Null takes all samples of a generator.")

    def check(self, path: str) -> None:
        if not self.classifier_seeds or len(set(self.classifier_seeds)) < len(self.classifier_seeds):
            raise ConfigError(
                f"{path}.classifier_seeds must be different seeds, at least one, "
                f"got {self.classifier_seeds}.",
                key=f"{path}.classifier_seeds",
            )


STAGE = Stage(
    kind="tstr_mlp",
    settings=TSTRSettings,
    runs="fedsynth.stages.tstr_mlp.run:run",
    side=Side.AUDITOR,
    roles=("train", "latents"),
    accepts={"train": ("encode", "mix", "synthesize"), "latents": ("encode",)},
    yields=always(Sensitivity.PRIVATE),
    trains=True,
    uncovered=lambda settings: ("validation latents, used to choose the decision threshold",),
)
