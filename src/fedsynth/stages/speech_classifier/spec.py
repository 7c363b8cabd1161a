"""speech_clients → classifier of audio and text, by any federated strategy or on pooled segments (FedMPA)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.multimodal.settings import (
    TrainingSettings,
    chosen_on_validation,
    published_in_training,
    training_price,
)


@dataclass(frozen=True)
class SpeechClassifierSettings(TrainingSettings):
    hidden_dim: int = setting(minimum=2)
    embedding_dim: int = setting(minimum=1)
    num_heads: int = setting(minimum=1)
    num_layers: int = setting(minimum=1)
    dropout: float = setting(minimum=0.0, below=1.0)

    def check(self, path: str) -> None:
        self.check_training(path)
        if self.strategy_name == "fedbn":
            raise ConfigError(
                f"{path}.strategy.name must not be fedbn: the network of speech segments has no batch normalization to "
                "keep. "
                f"Say federated=fedavg, or strategy@{path}.strategy=fedavg for this stage.",
                key=f"{path}.strategy.name",
            )
        if self.hidden_dim % 2 or self.hidden_dim % self.num_heads:
            raise ConfigError(
                f"{path}.hidden_dim must be even and a multiple of num_heads={self.num_heads}, got {self.hidden_dim}: "
                "it is split over two directions and over the heads.",
                key=f"{path}.hidden_dim",
            )


def uncovered(settings: SpeechClassifierSettings) -> tuple[str, ...]:
    """What leaves the clients without a formal guarantee, with the choice made on validation records."""
    return (*published_in_training(settings), *chosen_on_validation(settings))


STAGE = Stage(
    kind="speech_classifier",
    settings=SpeechClassifierSettings,
    runs="fedsynth.stages.speech_classifier.run:run",
    side=Side.CLIENT,
    roles=("clients",),
    accepts={"clients": ("speech_clients",)},
    yields=always(Sensitivity.PRIVATE),
    trains=True,
    uncovered=uncovered,
    price=training_price,
)
