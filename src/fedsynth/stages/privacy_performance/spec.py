"""classifier → accuracy … UAR, confidence attack, ρ and PPS with intervals over participants (FedMPA)."""

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
class PrivacyPerformanceSettings:
    seed: int = setting(minimum=0)
    arm: str = setting(remedy="The name of the system in tables, e.g. fedmpa.")
    inference: str = setting(one_of=("softmax", "hybrid", "prototype"))
    confidence_threshold: float = setting(
        minimum=0.0,
        maximum=1.0,
        remedy="FedMPA: 0.6; two classes never have a largest probability below 0.5.",
    )
    margin_modalities: list[str] | None = setting(
        one_of=("image", "ecg", "audio", "text", "fused"), remedy="Null takes all of the classifier."
    )
    target_uar: float = setting(above=0.0, maximum=1.0)
    num_bootstrap: int = setting(minimum=1)

    def check(self, path: str) -> None:
        check_arm_name(self.arm, path)
        names = self.margin_modalities
        if names is not None and (not names or len(set(names)) < len(names)):
            raise ConfigError(
                f"{path}.margin_modalities must name at least one modality, each once, got {names}. "
                "Null takes all of the classifier.",
                key=f"{path}.margin_modalities",
            )


def _check_suppliers(settings: PrivacyPerformanceSettings, suppliers: Mapping[str, Any], path: str) -> None:
    """Prototypes can decide only where the server has some, and records must be those of the training."""
    check_same_clients(suppliers, path)
    encoder = suppliers["encoder"]
    strategy = strategy_name(encoder.settings)
    if settings.inference != "softmax" and strategy not in PROTOTYPE_STRATEGIES:
        raise ConfigError(
            f"{path}.inference must be softmax for {encoder.name}, whose training ({strategy}) leaves no prototypes, "
            f"got {settings.inference}. Strategies that do: {', '.join(PROTOTYPE_STRATEGIES)}.",
            key=f"{path}.inference",
        )


STAGE = Stage(
    kind="privacy_performance",
    settings=PrivacyPerformanceSettings,
    runs="fedsynth.stages.privacy_performance.run:run",
    side=Side.AUDITOR,
    roles=("clients", "encoder"),
    accepts=CLASSIFIER_SUPPLIERS,
    yields=always(Sensitivity.PRIVATE),
    uncovered=lambda settings: ("test metrics and attack AUROCs: computed on private records",),
    check_suppliers=_check_suppliers,
)
