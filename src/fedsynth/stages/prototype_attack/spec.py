"""classifier trained with prototypes → what each client's uploads give away about its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.options import PROTOTYPE_STRATEGIES
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always
from fedsynth.stages.multimodal.supplier_checks import (
    CLASSIFIER_SUPPLIERS,
    check_arm_name,
    check_same_clients,
    strategy_name,
)


@dataclass(frozen=True)
class PrototypeAttackSettings:
    seed: int = setting(minimum=0)
    arm: str = setting(remedy="The name of the system in tables, e.g. fedmpa.")
    num_bootstrap: int = setting(minimum=1)

    def check(self, path: str) -> None:
        check_arm_name(self.arm, path)


def _check_suppliers(settings: PrototypeAttackSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """There must be prototypes, and the records must be those of the training."""
    check_same_clients(suppliers, path)
    encoder = suppliers["encoder"]
    strategy = strategy_name(encoder.settings)
    if strategy not in PROTOTYPE_STRATEGIES:
        raise ConfigError(
            f"{path}.inputs.encoder must be trained with prototypes, got {encoder.name}, whose training ({strategy}) "
            f"sends none. Strategies that do: {', '.join(PROTOTYPE_STRATEGIES)}.",
            key=f"{path}.inputs.encoder",
        )


STAGE = Stage(
    kind="prototype_attack",
    settings=PrototypeAttackSettings,
    runs="fedsynth.stages.prototype_attack.run:run",
    side=Side.AUDITOR,
    roles=("clients", "encoder"),
    accepts=CLASSIFIER_SUPPLIERS,
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("attack AUROCs and attribution rates: computed on private records",),
    check_suppliers=_check_suppliers,
)
