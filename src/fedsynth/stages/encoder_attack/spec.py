"""encoder → loss, confidence and entropy membership attacks on its class probabilities."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.multimodal.supplier_checks import check_global_model


@dataclass(frozen=True)
class EncoderAttackSettings:
    seed: int = setting(minimum=0)
    num_bootstrap: int = setting(minimum=1)
    batch_size: int = setting(minimum=1, in_key=False)


STAGE = Stage(
    kind="encoder_attack",
    settings=EncoderAttackSettings,
    runs="fedsynth.stages.encoder_attack.run:run",
    side=Side.AUDITOR,
    roles=("clients", "encoder"),
    accepts={"clients": ("clients",), "encoder": ("fusion_encoder",)},
    check_suppliers=check_global_model,
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("attack AUROCs: computed on private records",),
)
