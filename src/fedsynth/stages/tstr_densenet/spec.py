"""image set → DenseNet trained on it, tested on real images: C_r of real images, C_s of synthetic ones."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.image_set_kinds import IMAGE_SETS, REAL_IMAGES
from fedsynth.stages.tstr_densenet.classifier_settings import ClassifierSettings


@dataclass(frozen=True)
class TSTRDenseNetSettings(ClassifierSettings):
    arm: str = setting()
    seeds: list[int] = setting(minimum=0)
    num_bootstrap: int = setting(minimum=1)

    def check(self, path: str) -> None:
        ClassifierSettings.check(self, path)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(
                f"{path}.seeds must be different seeds, at least one, got {self.seeds}.", key=f"{path}.seeds"
            )


# On the clients by default: C_r ranks and filters there. A comparison that no client would run says as_auditor.
STAGE = Stage(
    kind="tstr_densenet",
    settings=TSTRDenseNetSettings,
    runs="fedsynth.stages.tstr_densenet.run:run",
    side=Side.CLIENT,
    roles=("train", "images"),
    accepts={"train": IMAGE_SETS, "images": REAL_IMAGES},
    yields=always(Sensitivity.PRIVATE),
    trains=True,
    uncovered=lambda settings: ("real validation images, which choose the checkpoint",),
)
