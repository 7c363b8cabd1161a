"""The settings that every training of a multimodal classifier has, whatever its data. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.options import (
    PERSONAL_STRATEGIES,
    PROTOTYPE_STRATEGIES,
    StrategyOptions,
    strategy_options,
)
from fedsynth.pipeline.settings import build_settings, setting
from fedsynth.privacy.prototype_ledger import CLIENT_WEIGHTS
from fedsynth.privacy.prototype_release import LARGEST_EPSILON

CLIP_RADIUS_REMEDY = "In units of the embeddings; public, so choose it before looking at the clients."


@dataclass(frozen=True)
class PrototypePrivacy:
    """Noise on the prototypes that clients send."""

    mechanism: str = setting(one_of=("none", "gaussian"))
    epsilon: float = setting(above=0.0, allow_infinite=True, remedy="Typical: 1 to 8; .inf clips only.")
    delta: float = setting(above=0.0, below=1.0, remedy="Well below 1 / records; the default is 1e-5.")
    clip_radius: float = setting(minimum=1e-6, maximum=1e6, remedy=CLIP_RADIUS_REMEDY)
    min_class_records: int = setting(minimum=1)
    covers: str = setting(one_of=("means", "training"), remedy="means takes the encoders as given.")
    secure_noise: bool = setting()

    def check(self, path: str) -> None:
        if LARGEST_EPSILON < self.epsilon < math.inf:
            raise ConfigError(
                f"{path}.epsilon must be at most {LARGEST_EPSILON:g} or .inf, got {self.epsilon:g}. Typical: 1 to 8; "
                ".inf clips only.",
                key=f"{path}.epsilon",
            )


@dataclass(frozen=True)
class TrainingSettings:
    """How a multimodal classifier is trained; the settings of such a stage add its network."""

    seed: int = setting(minimum=0)
    training: str = setting(one_of=("federated", "centralized"))
    strategy: dict[str, Any] = setting()
    class_weighting: str = setting(one_of=("none", "client"))
    prototype_privacy: dict[str, Any] = setting()
    local_epochs: int = setting(minimum=1)
    participation: float = setting(above=0.0, maximum=1.0)
    checkpoint: str = setting(one_of=("best", "last"))
    learning_rate: float = setting(above=0.0)
    weight_decay: float = setting(minimum=0.0)
    batch_size: int = setting(minimum=2)

    @property
    def strategy_name(self) -> str:
        return str(self.strategy["name"])

    @property
    def shares_prototypes(self) -> bool:
        """Whether clients send class prototypes."""
        return self.training == "federated" and self.strategy_name in PROTOTYPE_STRATEGIES

    @property
    def shares_weights(self) -> bool:
        """Whether clients send their models."""
        return self.training == "federated" and self.strategy_name not in PERSONAL_STRATEGIES

    @property
    def has_global_model(self) -> bool:
        """Whether one model stands for all clients; else each keeps its own."""
        return self.training == "centralized" or self.shares_weights

    def options(self, path: str = "strategy") -> StrategyOptions:
        """The strategy's own numbers, checked."""
        return strategy_options(self.strategy, path)

    def privacy(self, path: str = "prototype_privacy") -> PrototypePrivacy:
        """What protects the prototypes, checked."""
        return build_settings(PrototypePrivacy, self.prototype_privacy, path)

    @property
    def protects_prototypes(self) -> bool:
        """Whether the prototypes that clients send carry noise."""
        privacy = self.prototype_privacy
        return (
            self.shares_prototypes
            and privacy["mechanism"] == "gaussian"
            and math.isfinite(float(privacy["epsilon"]))
        )

    def check_training(self, path: str) -> None:
        """Refuse a strategy or a mechanism that does not fit the rest."""
        self.options(f"{path}.strategy")
        privacy = self.privacy(f"{path}.prototype_privacy")
        if privacy.mechanism == "gaussian" and not self.shares_prototypes:
            raise ConfigError(
                f"{path}.prototype_privacy.mechanism must be none unless clients send prototypes, got gaussian with "
                f"strategy {self.strategy_name} and training={self.training}. Say privacy=dp_pma, or one of "
                f"federated={'|'.join(PROTOTYPE_STRATEGIES)}.",
                key=f"{path}.prototype_privacy.mechanism",
            )
        if privacy.mechanism == "gaussian" and privacy.covers == "training" and self.shares_weights:
            raise ConfigError(
                f"{path}.prototype_privacy.covers=training cannot hold with {self.strategy_name}, whose clients send "
                "their weights as well. Say covers=means, which takes the encoders as given, or federated=fedproto.",
                key=f"{path}.prototype_privacy.covers",
            )
        if privacy.mechanism == "gaussian" and privacy.covers == "training" and self.checkpoint == "best":
            raise ConfigError(
                f"{path}.checkpoint must be last with prototype_privacy.covers=training, got best: to choose a round by "
                "the clients' own models is not covered. Say federated.checkpoint=last.",
                key=f"{path}.checkpoint",
            )


def training_price(settings: TrainingSettings) -> tuple[float, float] | None:
    """(ε, δ) of what clients send; None for local training, where no model leaves them.

    Finite only where nothing but noisy prototypes leaves them and the noise covers the encoders' training too.
    """
    if settings.training == "federated" and settings.strategy_name == "local":
        return None
    covered = settings.protects_prototypes and settings.prototype_privacy["covers"] == "training"
    if covered and not settings.shares_weights:
        return float(settings.prototype_privacy["epsilon"]), float(settings.prototype_privacy["delta"])
    return math.inf, 0.0


RECORDS = "the number of records of each client, used as FedAvg weights"
LOSS = "the mean training loss of each client, in every round"
VALIDATION = "validation loss, AUROC and UAR of the clients' own models, in every round"
PROTOTYPES = "the mean embedding of every class and modality of each client, in every round"
COUNTS = "the number of records of each class of each client, sent with its prototypes"
POOLED = ("all training records: they are pooled at one place, as no federation would",)


def published_in_training(settings: TrainingSettings) -> tuple[str, ...]:
    """What leaves the clients in training without a guarantee."""
    if settings.training == "centralized":
        return POOLED
    sent = []
    if settings.shares_weights:
        sent += [CLIENT_WEIGHTS, RECORDS]
    if settings.shares_prototypes:
        sent += [COUNTS] if settings.protects_prototypes else [PROTOTYPES, COUNTS]
    return (*sent, LOSS) if settings.has_global_model else (*sent, LOSS, VALIDATION)


def chosen_on_validation(settings: TrainingSettings, *, thresholds: bool = False) -> tuple[str, ...]:
    """The choices that validation records enter, if any; ``thresholds`` says whether decisions are among them."""
    epoch = "epoch" if settings.training == "centralized" else "round"
    choices = [f"the {epoch}"] if settings.checkpoint == "best" else []
    choices += ["the decision thresholds"] if thresholds else []
    return (f"validation records, used to choose {' and '.join(choices)}",) if choices else ()
