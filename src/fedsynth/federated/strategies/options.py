"""What the config says about a strategy: its name and its own numbers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import build_settings, setting


@dataclass(frozen=True)
class StrategyOptions:
    """Of a strategy without numbers of its own."""

    name: str = setting()


@dataclass(frozen=True)
class FedProxOptions(StrategyOptions):
    proximal_weight: float = setting(minimum=0.0, remedy="Typical: 0.01.")


@dataclass(frozen=True)
class FedProtoOptions(StrategyOptions):
    pull_weight: float = setting(minimum=0.0, remedy="Typical: 0.1 to 1.")


@dataclass(frozen=True)
class FedGPDOptions(StrategyOptions):
    distillation_weight: float = setting(minimum=0.0, remedy="Typical: 0.05.")
    temperature: float = setting(above=0.0, remedy="Typical: 2.")


@dataclass(frozen=True)
class FedMPAOptions(StrategyOptions):
    pull_weights: list[float] = setting(minimum=0.0, remedy="The paper's are [0.07, 0.07, 0.08].")
    repulsion_weights: list[float] = setting(minimum=0.0, remedy="The paper's are [0.07, 0.07, 0.08].")
    repulsion: str = setting(one_of=("hinge", "inverse", "gaussian"))
    repulsion_margin: float = setting(above=0.0, maximum=2.0, remedy="Of vectors of length 1; typical: 1.")
    bank_momentum: float = setting(minimum=0.0, below=1.0, remedy="The paper's is 0.9; 0 keeps no past.")
    prototype_weighting: str = setting(one_of=("count", "uniform"))
    aggregation: str = setting(one_of=("similarity", "records"), remedy="The paper's is similarity.")
    sensitivity: float = setting(minimum=0.0, maximum=100.0, remedy="The paper's is 2.")
    softplus: str = setting(one_of=("outside", "inside"))
    server_momentum: float = setting(minimum=0.0, below=1.0, remedy="The paper's is 0.9.")
    server_learning_rate: float = setting(above=0.0, remedy="The paper's is 1.")

    def check(self, path: str) -> None:
        for name in ("pull_weights", "repulsion_weights"):
            value = list(getattr(self, name))
            if len(value) != 3:
                raise ConfigError(
                    f"{path}.{name} must hold three numbers (first modality, second, fused), got {value}. "
                    "The paper's are [0.07, 0.07, 0.08].",
                    key=f"{path}.{name}",
                )


OPTIONS: dict[str, type[StrategyOptions]] = {
    "fedavg": StrategyOptions,
    "fedbn": StrategyOptions,
    "fedprox": FedProxOptions,
    "fedproto": FedProtoOptions,
    "fedgpd": FedGPDOptions,
    "fedmpa": FedMPAOptions,
    "local": StrategyOptions,
}
#: Strategies whose clients send class prototypes.
PROTOTYPE_STRATEGIES = ("fedproto", "fedgpd", "fedmpa")
#: Strategies without a global model.
PERSONAL_STRATEGIES = ("fedproto", "local")


def strategy_options(values: Mapping[str, Any], path: str) -> StrategyOptions:
    """The checked options of the strategy that ``values["name"]`` names.

    Args:
        values: Name and numbers, as composed.
        path: Config path, for messages.

    Raises:
        ConfigError: For an unknown name, or an unknown, missing or impossible number.
    """
    name = values.get("name") if isinstance(values, Mapping) else None
    if not isinstance(name, str) or name not in OPTIONS:
        raise ConfigError(
            f"{path}.name must be one of {', '.join(OPTIONS)}, got {name!r}. Say federated=NAME, or "
            f"strategy@{path}=NAME for one stage.",
            key=f"{path}.name",
        )
    return build_settings(OPTIONS[name], values, path)
