"""Which stages leave scores of a system, and how a setting names the system among them. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.stages.multimodal.supplier_checks import check_global_model

#: Stages with ``scores.safetensors``: labels, probabilities and logits on validation and test records.
SYSTEM_KINDS = ("fusion_encoder", "tstr_mlp")

#: What a fusion encoder is shown in each arm.
ARMS: Mapping[str, tuple[str, ...]] = {
    "both": ("image", "ecg"), "image_only": ("image",), "ecg_only": ("ecg",),
}  # fmt: skip

SYSTEM_THRESHOLDS = "validation records, used to choose the decision thresholds"


def arm_setting() -> Any:
    """The arm of a ``fusion_encoder``; null for a ``tstr_mlp``, which holds one."""
    return setting(
        one_of=tuple(ARMS),
        remedy="Null stands for the one arm of a tstr_mlp stage.",
    )


def arms_of(modalities: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The missing-modality arms a network can be asked about; the first shows all it was trained with."""
    return {arm: shown for arm, shown in ARMS.items() if set(shown) <= set(modalities)}


def check_arm(arm: str | None, system: Any, key: str) -> None:
    """Refuse an arm that a planned system will not have, before anything is trained.

    Args:
        arm: As the setting under `key` gives it.
        system: The planned stage that leaves the scores (its ``name``, ``stage`` and ``settings``).
        key: Config key of the arm.

    Raises:
        ConfigError: Naming the key, the arm and those there are.
    """
    if system.stage.kind == "tstr_mlp" and arm is not None:
        raise ConfigError(f"{key} must be null for {system.name}, which holds one arm, got {arm!r}.", key=key)
    if system.stage.kind == "fusion_encoder":
        check_global_model(None, {"encoder": system}, key.rpartition(".")[0])
        arms = arms_of(system.settings.modalities)
        if arm not in arms:
            raise ConfigError(
                f"{key} must be one of {', '.join(arms)}, the arms of {system.name}, got {arm!r}.", key=key
            )
