"""ChestMNIST → X-ray encoder: 14 labels, weighted binary cross-entropy (Eq. 10)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.network_shape import check_backbone, check_channels


@dataclass(frozen=True)
class PretrainSettings:
    seed: int = setting(minimum=0)
    backbone: str = setting()
    image_channels: list[int] = setting(minimum=1)
    normalization: str = setting(one_of=("batch", "group"))
    token_dim: int = setting(minimum=1)
    learning_rate: float = setting(above=0.0)
    weight_decay: float = setting(minimum=0.0)
    batch_size: int = setting(minimum=2)

    def check(self, path: str) -> None:
        check_backbone(self.backbone, path)
        check_channels("image_channels", self.image_channels, path)


STAGE = Stage(
    kind="pretrain_xray",
    settings=PretrainSettings,
    runs="fedsynth.stages.pretrain_xray.run:run",
    side=Side.SERVER,
    data=("chestmnist",),
    trains=True,
)
