"""clients → encoder: gated fusion of X-ray and ECG, trained by the federated loop (Eqs. 9, 11–17)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.network_shape import check_backbone, check_channels


@dataclass(frozen=True)
class FusionEncoderSettings:
    seed: int = setting(minimum=0)
    backbone: str = setting()
    image_channels: list[int] = setting(minimum=1)
    signal_channels: list[int] = setting(minimum=1)
    signal_kernels: list[int] = setting(minimum=1)
    normalization: str = setting(one_of=("batch", "group"))
    fusion: str = setting(one_of=("gated", "mean"))
    token_dim: int = setting(minimum=1)
    num_heads: int = setting(minimum=1)
    latent_dim: int = setting(minimum=1)
    dropout: float = setting(minimum=0.0, below=1.0)
    missing: str = setting(one_of=("skip", "zero"))
    modality_dropout: float = setting(minimum=0.0, below=1.0)
    strategy: str = setting(one_of=("fedavg",))
    local_epochs: int = setting(minimum=1)
    participation: float = setting(above=0.0, maximum=1.0)
    checkpoint: str = setting(one_of=("best", "last"))
    learning_rate: float = setting(above=0.0)
    weight_decay: float = setting(minimum=0.0)
    batch_size: int = setting(minimum=2)
    num_bootstrap: int = setting(minimum=1)
    num_bins: int = setting(minimum=1)

    def check(self, path: str) -> None:
        check_backbone(self.backbone, path)
        check_channels("image_channels", self.image_channels, path)
        check_channels("signal_channels", self.signal_channels, path)
        if self.token_dim % self.num_heads:
            raise ConfigError(
                f"{path}.token_dim must be a multiple of num_heads, "
                f"got {self.token_dim} and {self.num_heads}.",
                key=f"{path}.token_dim",
            )
        if len(self.signal_channels) != len(self.signal_kernels):
            raise ConfigError(
                f"{path}.signal_kernels must have one width per entry of signal_channels, "
                f"got {self.signal_kernels} for {self.signal_channels}.",
                key=f"{path}.signal_kernels",
            )
        if any(width % 2 == 0 for width in self.signal_kernels):
            raise ConfigError(
                f"{path}.signal_kernels must be odd, so that a kernel has a center, "
                f"got {list(self.signal_kernels)}. Set model.signal_kernels, e.g. to [7, 5, 3].",
                key=f"{path}.signal_kernels",
            )


UPDATES = (
    "FedAvg updates: every client's weights and normalization statistics, in every round",
    "the number of records of each client, used as FedAvg weights",
    "the mean training loss of each client, in every round",
)

STAGE = Stage(
    kind="fusion_encoder",
    settings=FusionEncoderSettings,
    runs="fedsynth.stages.fusion_encoder.run:run",
    side=Side.CLIENT,
    roles=("clients",),
    optional_roles=("xray_encoder",),
    accepts={"clients": ("clients",), "xray_encoder": ("pretrain_xray",)},
    # The weights leave the clients (see UPDATES), but the folder holds test scores as well: no server stage reads it.
    yields=always(Sensitivity.PRIVATE),
    trains=True,
    uncovered=lambda settings: (
        *UPDATES,
        "validation records, used to choose the round and the decision thresholds",
    ),
)
