"""What the stages that read a trained classifier demand of its settings, before anything runs. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.stages.multimodal.settings import TrainingSettings


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
