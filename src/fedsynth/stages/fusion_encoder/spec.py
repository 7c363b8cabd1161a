"""clients → encoder: gated fusion of X-ray and ECG, trained by the federated loop (Eqs. 9, 11–17)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always


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
    # The weights leave the clients (see UPDATES), but the folder holds test scores as well: no server stage reads it.
    yields=always(Sensitivity.PRIVATE),
    trains=True,
    uncovered=lambda settings: (
        *UPDATES,
        "validation records, used to choose the round and the decision thresholds",
    ),
)
