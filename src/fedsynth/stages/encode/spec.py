"""encoder → latents: the frozen global encoder applied to every record, on the clients (Eq. 16)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.multimodal.supplier_checks import check_global_model


@dataclass(frozen=True)
class EncodeSettings:
    batch_size: int = setting(minimum=1, in_key=False)


STAGE = Stage(
    kind="encode",
    settings=EncodeSettings,
    runs="fedsynth.stages.encode.run:run",
    side=Side.CLIENT,
    roles=("clients", "encoder"),
    accepts={"clients": ("clients",), "encoder": ("fusion_encoder",)},
    check_suppliers=check_global_model,
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("mean latent norms by class and split, reported as numbers",),
)
