"""clients → encoder: gated fusion of X-ray and ECG, by the federated loop or on pooled pairs (Eqs. 9, 11–17)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.privacy.dp_sgd import check_dp_sgd_epsilon
from fedsynth.stages.multimodal.settings import (
    TrainingSettings,
    chosen_on_validation,
    published_in_training,
    training_price,
)
from fedsynth.stages.network_shape import check_backbone, check_channels


@dataclass(frozen=True)
class FusionEncoderSettings(TrainingSettings):
    modalities: list[str] = setting(one_of=("image", "ecg"))
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
    mechanism: str = setting(one_of=("none", "dp_sgd"))
    epsilon: float = setting(above=0.0, allow_infinite=True, remedy="Typical: 2 to 8; .inf adds no noise.")
    delta: float = setting(above=0.0, below=1.0, remedy="Well below 1 / records; the default is 1e-5.")
    clip_norm: float = setting(minimum=1e-6, maximum=1e6, remedy="Typical: 0.1 to 1.")
    secure_noise: bool = setting()
    num_bootstrap: int = setting(minimum=1)
    num_bins: int = setting(minimum=1)

    def check(self, path: str) -> None:
        self.check_training(path)
        self._check_system(path)
        self._check_mechanism(path)
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

    def _check_system(self, path: str) -> None:
        """What is trained, and how, fits together."""
        if not self.modalities or len(set(self.modalities)) < len(self.modalities):
            raise ConfigError(
                f"{path}.modalities must name image, ecg or both, each once, got {self.modalities}. "
                "Set model.modalities, e.g. to [image, ecg].",
                key=f"{path}.modalities",
            )
        if self.strategy_name == "fedbn" and (self.normalization != "batch" or self.training != "federated"):
            raise ConfigError(
                f"{path}.strategy must be fedavg unless normalization=batch and training=federated, got fedbn with "
                f"{self.normalization} and {self.training}: it keeps each client's batch normalization. "
                "Use federated=fedavg, or model.normalization=batch.",
                key=f"{path}.strategy",
            )

    def _check_mechanism(self, path: str) -> None:
        """DP-SGD needs gradients of single records, from every client by itself."""
        if self.mechanism == "none":
            return
        check_dp_sgd_epsilon(self.epsilon, f"{path}.epsilon")
        # The networks of timm normalize over the batch.
        needed = {"normalization": "group", "missing": "zero", "training": "federated", "backbone": "conv"}
        needed |= {"class_weighting": "none"}
        if self.strategy_name != "fedavg":
            raise ConfigError(
                f"{path}.mechanism=dp_sgd needs the strategy fedavg, got {self.strategy_name}: the price counts nothing "
                "but noisy gradients. Say federated=fedavg.",
                key=f"{path}.strategy.name",
            )
        wrong = [name for name, value in needed.items() if getattr(self, name) != value]
        if wrong:
            name = wrong[0]
            remedies = {"training": "federated=fedavg", "class_weighting": "federated.class_weighting=none"}
            remedy = remedies.get(name, f"model.{name}={needed[name]}")
            raise ConfigError(
                f"{path}.mechanism=dp_sgd needs {name}={needed[name]}, got {getattr(self, name)}: the gradient of one "
                f"record must not depend on another, nor leave its client. Say {remedy}.",
                key=f"{path}.{name}",
            )


CLIPPED = "all updates of every client in every round: gradients are clipped, but without noise"
PROTECTED = ("the number of records, the sampling rate and the number of steps of each client",)


def published(settings: FusionEncoderSettings) -> tuple[str, ...]:
    """What leaves the clients in training without a guarantee."""
    if settings.mechanism == "dp_sgd":
        return PROTECTED if math.isfinite(settings.epsilon) else (CLIPPED, *PROTECTED)
    return published_in_training(settings)


def uncovered(settings: FusionEncoderSettings) -> tuple[str, ...]:
    """What leaves them without a formal guarantee, with the choices made on validation records."""
    return (*published(settings), *chosen_on_validation(settings, thresholds=settings.has_global_model))


def price(settings: FusionEncoderSettings) -> tuple[float, float] | None:
    """(ε, δ) of all that a client sends in training."""
    protected = settings.mechanism == "dp_sgd" and math.isfinite(settings.epsilon)
    return (settings.epsilon, settings.delta) if protected else training_price(settings)


STAGE = Stage(
    kind="fusion_encoder",
    settings=FusionEncoderSettings,
    runs="fedsynth.stages.fusion_encoder.run:run",
    side=Side.CLIENT,
    roles=("clients",),
    optional_roles=("xray_encoder",),
    accepts={"clients": ("clients",), "xray_encoder": ("pretrain_xray",)},
    # The weights leave the clients (see published), but the folder holds test scores as well: no server stage reads it.
    yields=always(Sensitivity.PRIVATE),
    trains=True,
    uncovered=uncovered,
    price=price,
)
