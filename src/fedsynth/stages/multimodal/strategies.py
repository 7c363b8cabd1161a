"""The strategy object that a stage's settings ask for."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.base import Strategy
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.strategies.fedbn import FedBN, batch_norm_names
from fedsynth.federated.strategies.fedgpd import FedGPD
from fedsynth.federated.strategies.fedmpa import FedMPA, parameter_names
from fedsynth.federated.strategies.fedproto import FedProto
from fedsynth.federated.strategies.fedprox import FedProx
from fedsynth.federated.strategies.local import LocalOnly
from fedsynth.federated.strategies.options import (
    FedGPDOptions,
    FedMPAOptions,
    FedProtoOptions,
    FedProxOptions,
)
from fedsynth.pipeline.stage import StageContext
from fedsynth.privacy.prototype_release import PrototypeMechanism, noise_root
from fedsynth.stages.multimodal.module import FUSED, NUM_CLASSES, MultimodalClassifier
from fedsynth.stages.multimodal.settings import TrainingSettings


def build_strategy(
    settings: TrainingSettings,
    module: MultimodalClassifier,
    modalities: Sequence[str],
    context: StageContext,
    *,
    trained: Collection[str] | None = None,
) -> Strategy:
    """The strategy with its numbers, and with the mechanism that protects its prototypes.

    Args:
        settings: Of the stage.
        module: To be trained; FedBN and FedMPA ask it for names.
        modalities: The two single ones, in the order of FedMPA's weights.
        trained: Those the network is trained with, all if None.
        context: Its key names the noise stream, so that no two different trainings share one.
    """
    options = settings.options(f"stages.{context.name}.strategy")
    sharing: dict[str, Any] = {}
    if settings.shares_prototypes:
        sharing = sharing_arguments(settings, shared_modalities(settings, modalities, trained), context)
    match options:
        case FedProxOptions():
            return FedProx(proximal_weight=options.proximal_weight)
        case FedProtoOptions():
            return FedProto(pull_weight=options.pull_weight, **sharing)
        case FedGPDOptions():
            return FedGPD(
                distillation_weight=options.distillation_weight,
                temperature=options.temperature,
                **sharing,
            )
        case FedMPAOptions():
            return _fedmpa(options, module, (*modalities, FUSED), sharing)
    plain = {"fedbn": lambda: FedBN(batch_norm_names(module)), "local": LocalOnly, "fedavg": FedAvg}
    return plain[options.name]()


def _fedmpa(
    options: FedMPAOptions, module: MultimodalClassifier, named: Sequence[str], sharing: dict[str, Any]
) -> FedMPA:
    numbers = {name: value for name, value in vars(options).items() if name != "name"}
    for name in ("pull_weights", "repulsion_weights"):
        weights = dict(zip(named, numbers[name], strict=True))
        numbers[name] = {modality: weights[modality] for modality in sharing["modalities"]}
    return FedMPA(parameters=parameter_names(module), **numbers, **sharing)


def shared_modalities(
    settings: TrainingSettings, modalities: Sequence[str], trained: Collection[str] | None = None
) -> tuple[str, ...]:
    """The embeddings that clients make prototypes of: the fused one, under FedMPA after those of single modalities.

    Args:
        settings: Of the stage.
        modalities: The two single ones.
        trained: Those the network is trained with, all if None; the others have no embedding.
    """
    single = [name for name in modalities if trained is None or name in trained]
    return (*single, FUSED) if settings.strategy_name == "fedmpa" else (FUSED,)


def sharing_arguments(
    settings: TrainingSettings, modalities: Sequence[str], context: StageContext
) -> dict[str, Any]:
    """What every strategy with prototypes is told about them; ``modalities`` as ``shared_modalities`` says."""
    privacy = settings.privacy(f"stages.{context.name}.prototype_privacy")
    mechanism = None
    if privacy.mechanism == "gaussian":
        refuse_batch_limits(context, privacy.epsilon)
        mechanism = PrototypeMechanism(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            clip_radius=privacy.clip_radius,
            num_rounds=context.trainer["max_epochs"],
            num_modalities=len(modalities),
            min_class_records=privacy.min_class_records,
            covers=privacy.covers,
            num_classes=NUM_CLASSES,
        )
    return {
        "modalities": tuple(modalities),
        "mechanism": mechanism,
        "noise_seed": noise_root(settings.seed, context.key, secure_noise=privacy.secure_noise),
        "num_classes": NUM_CLASSES,
    }


def refuse_batch_limits(context: StageContext, epsilon: float) -> None:
    """Refuse noisy prototypes of some batches only: which records enter would depend on the others.

    Raises:
        ConfigError: Naming the argument of the trainer.
    """
    for name in ("limit_train_batches", "overfit_batches", "fast_dev_run"):
        value = context.trainer.get(name)
        whole = value is None or value is False or value == 0 or (isinstance(value, float) and value == 1)
        if not whole and math.isfinite(epsilon):
            raise ConfigError(
                f"trainer.{name}={value} cannot be combined with noisy prototypes (stages.{context.name}): their noise "
                "is that of means over all records. Leave it out, or say privacy=dp_pma.",
                key=f"trainer.{name}",
            )
