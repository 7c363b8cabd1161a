"""What the stages that read a trained classifier demand of its settings, before anything runs. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.stages.multimodal.settings import TrainingSettings

#: What may supply the inputs of a stage that evaluates or attacks a trained classifier.
CLASSIFIER_SUPPLIERS = {
    "clients": ("clients", "speech_clients"), "encoder": ("fusion_encoder", "speech_classifier"),
}  # fmt: skip


def check_global_model(settings: Any, suppliers: Mapping[str, Any], path: str) -> None:
    """Refuse an encoder that is not one model but one for each client; a ``check_suppliers`` of a stage.

    Raises:
        ConfigError: Naming the input and the strategy.
    """
    for role, supplier in suppliers.items():
        trained = supplier.settings
        if isinstance(trained, TrainingSettings) and not trained.has_global_model:
            raise ConfigError(
                f"{path}.inputs.{role}={supplier.name} must be trained into one model, but under strategy "
                f"{trained.strategy_name} every client keeps its own. Say federated=fedavg, fedbn, fedprox, fedgpd or "
                "fedmpa; systems of personal models are compared by experiment=fedmpa.",
                key=f"{path}.inputs.{role}",
            )


def check_same_clients(suppliers: Mapping[str, Any], path: str) -> None:
    """Refuse records other than those the classifier is trained on.

    Raises:
        ConfigError: Naming the input.
    """
    encoder, clients = suppliers["encoder"], suppliers["clients"]
    if encoder.inputs["clients"] != clients.name:
        raise ConfigError(
            f"{path}.inputs.clients must be {encoder.inputs['clients']}, the records {encoder.name} is trained on, "
            f"got {clients.name}.",
            key=f"{path}.inputs.clients",
        )


def check_arm_name(arm: str, path: str) -> None:
    """Refuse a system's name that would read as two parts of a metric's name.

    Raises:
        ConfigError: Naming the key.
    """
    if not arm or "/" in arm:
        raise ConfigError(f"{path}.arm must be a name without '/', got {arm!r}.", key=f"{path}.arm")


def strategy_name(settings: TrainingSettings) -> str:
    """The federated strategy that a planned classifier is trained by; ``centralized`` for pooled records."""
    return "centralized" if settings.training == "centralized" else settings.strategy_name
