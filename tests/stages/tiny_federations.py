"""Every federated system on the tiny pairs: settings, training, and a kill in the middle of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from tiny_stages import run_stage, settings, stage_context
from torch import Tensor

from fedsynth.composition import CONFIG_DIR
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages import training

SYSTEMS = ("centralized", "fedavg", "fedprox", "fedproto", "fedgpd", "fedmpa", "local")
WITH_PROTOTYPES = ("fedproto", "fedgpd", "fedmpa")
PERSONAL = ("fedproto", "local")
NOISE = {
    "mechanism": "gaussian", "epsilon": 4.0, "delta": 1e-5, "clip_radius": 0.5, "min_class_records": 2,
    "covers": "means", "secure_noise": False,
}  # fmt: skip


def strategy(name: str, **numbers: Any) -> dict[str, Any]:
    """``configs/strategy/<name>.yaml`` with some numbers changed."""
    values = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "strategy" / f"{name}.yaml"))
    assert isinstance(values, dict)
    return {**{str(key): value for key, value in values.items()}, **numbers}


def system_settings(system: str, numbers: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """Of a ``fusion_encoder``; ``numbers`` are those of the strategy."""
    if system == "centralized":
        return settings("fusion_encoder", training="centralized", **changes)
    return settings("fusion_encoder", strategy=strategy(system, **(numbers or {})), **changes)


def train_system(
    folder: Path,
    clients: Artifact,
    system: str,
    numbers: Mapping[str, Any] | None = None,
    *,
    rounds: int = 2,
    key: str = "0" * 64,
    trainer: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Artifact:
    asked = system_settings(system, numbers, **changes)
    context = stage_context(folder, rounds, key=key, trainer=trainer or {})
    return run_stage("fusion_encoder", asked, {"clients": clients}, context)


def history(encoder: Artifact) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = json.loads((encoder.path / "history.json").read_text())
    return rows


def of_client(tensors: Mapping[str, Tensor], client: int) -> dict[str, Tensor]:
    """The tensors of one client, by their own names."""
    prefix = f"{client}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def killed_at(round_: int, train: Callable[[], Any]) -> None:
    """Train until a round starts, and no further."""

    class Kill(Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == round_:
                raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "epoch_progress", lambda context, trainer_class: [Kill()])
        with pytest.raises(InterruptedError):
            train()
