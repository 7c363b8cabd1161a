"""real images with patients → identity network P(x, x') with thresholds (Packhäuser et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.image_set_kinds import REAL_IMAGES
from fedsynth.stages.network_shape import check_backbone, check_channels


@dataclass(frozen=True)
class ReidentifierSettings:
    seed: int = setting(minimum=0)
    backbone: str = setting()
    channels: list[int] = setting(minimum=1)
    embedding_dim: int = setting(minimum=1)
    weights: str | None = setting(is_file=True)
    input_size: int | None = setting(minimum=8)
    loss: str = setting(one_of=("siamese_bce", "infonce_mix"))
    temperature: float = setting(above=0.0)
    pairs: str = setting(one_of=("patient", "augmentation"))
    patient_share: float = setting(above=0.0, maximum=1.0)
    max_pairs_per_patient: int | None = setting(minimum=1)
    negatives: str = setting(one_of=("random", "matched", "hard"))
    negatives_per_positive: int = setting(minimum=1)
    augmentation: float = setting(minimum=0.0, maximum=3.0)
    calibration: str = setting(one_of=("none", "platt"))
    learning_rate: float = setting(above=0.0, maximum=10.0)
    weight_decay: float = setting(minimum=0.0)
    decay: str = setting(one_of=("constant", "cosine"))
    batch_size: int = setting(minimum=2)
    steps_per_epoch: int | None = setting(minimum=1)
    patience: int | None = setting(minimum=1)
    threshold_rule: str = setting(one_of=("fixed", "fpr", "fnr", "youden"))
    threshold_value: float | None = setting(minimum=0.0, maximum=1.0)
    num_bootstrap: int = setting(minimum=1)

    def check(self, path: str) -> None:
        check_backbone(self.backbone, path)
        check_channels("channels", self.channels, path)
        for name, fault in self._faults().items():
            raise ConfigError(f"{path}.{name} {fault}", key=f"{path}.{name}")

    def _faults(self) -> dict[str, str]:
        """By setting what does not fit the others."""
        faults = {}
        if self.weights is not None and self.backbone == "conv":
            faults["weights"] = (
                f"is for timm backbones only, got {self.weights!r} with backbone conv. Set it to null."
            )
        if self.loss == "infonce_mix" and self.calibration == "none":
            faults["calibration"] = (
                "must be platt with reidentification.loss=infonce_mix: a cosine similarity is no probability."
            )
        if self.loss == "infonce_mix" and self.negatives == "hard":
            faults["negatives"] = (
                "must be random or matched with reidentification.loss=infonce_mix, got hard: InfoNCE weighs hard "
                "negatives by itself; lower reidentification.temperature to stress them."
            )
        if (self.threshold_rule == "youden") != (self.threshold_value is None):
            faults["threshold_value"] = (
                f"must be null for the rule youden and a number for the others, got {self.threshold_value} "
                f"for {self.threshold_rule}. Set reidentification.threshold_value."
            )
        uses_views = self.pairs == "augmentation" or self.patient_share < 1
        if uses_views and self.augmentation == 0:
            faults["augmentation"] = (
                "must be > 0 where two views of one image are a pair (reidentification.pairs=augmentation, or "
                "patient_share < 1), got 0: the two would be the same."
            )
        if self.pairs == "augmentation" and self.steps_per_epoch is None:
            faults["steps_per_epoch"] = (
                "must be a number with pairs=augmentation: there are no pairs to go through."
            )
        return faults


STAGE = Stage(
    kind="reidentifier",
    settings=ReidentifierSettings,
    runs="fedsynth.stages.reidentifier.run:run",
    side=Side.CLIENT,
    roles=("images",),
    accepts={"images": REAL_IMAGES},
    trains=True,
)
