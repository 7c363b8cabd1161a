"""Which stages leave scores of a system, and how a setting names the system among them. Needs no torch."""

from __future__ import annotations

from typing import Any

from fedsynth.pipeline.settings import setting

#: Stages with ``scores.safetensors``: labels, probabilities and logits on validation and test records.
SYSTEM_KINDS = ("fusion_encoder", "tstr_mlp")

SYSTEM_THRESHOLDS = "validation records, used to choose the decision thresholds"


def arm_setting() -> Any:
    """The arm of a ``fusion_encoder``; null for a ``tstr_mlp``, which holds one."""
    return setting(
        one_of=("both", "image_only", "ecg_only"),
        remedy="Null stands for the one arm of a tstr_mlp stage.",
    )
