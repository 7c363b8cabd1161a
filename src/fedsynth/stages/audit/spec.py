"""everything → audit: latent fidelity, nearest-neighbor disclosure, released-summary membership attack."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always


@dataclass(frozen=True)
class AuditSettings:
    seed: int = setting(minimum=0)
    nearest_k: int = setting(minimum=1)
    num_attack_repetitions: int = setting(minimum=1)
    samples_per_class: int = setting(minimum=1)

    def check(self, path: str) -> None:
        if self.samples_per_class <= self.nearest_k:
            raise ConfigError(
                f"{path}.samples_per_class must be above nearest_k={self.nearest_k}, got {self.samples_per_class}: a "
                "sample needs that many neighbors. Raise diffusion.num_synthetic_per_class; the usual value is 2500.",
                key=f"{path}.samples_per_class",
            )


STAGE = Stage(
    kind="audit",
    settings=AuditSettings,
    runs="fedsynth.stages.audit.run:run",
    side=Side.AUDITOR,
    roles=("latents", "release", "mixture", "synthetic"),
    accepts={
        "latents": ("encode",),
        "release": ("release",),
        "mixture": ("mix",),
        "synthetic": ("synthesize", "mix"),
    },
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("every number of the audit: computed on private records",),
)
