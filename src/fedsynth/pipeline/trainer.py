"""The trainer arguments a config may give, with their bounds, checked without importing Lightning.

What is not here (``logger``, ``callbacks``, ``default_root_dir``, …) is set by the stages themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import build_settings, setting

PRECISIONS = (
    "32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "32", "64", 32, 64,
)  # fmt: skip

# Norms of single gradients are rounded in all others, by up to 0.4 % in bf16: so would the sensitivity be.
FULL_PRECISIONS = (None, 32, 64, "32", "64", "32-true", "64-true")

SHARES = (
    "limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches",
    "overfit_batches", "val_check_interval",
)  # fmt: skip


@dataclass(frozen=True)
class TrainerSettings:
    """Arguments of ``lightning.Trainer`` and two of our own; None is Lightning's default."""

    # Ours.
    num_threads: int | None = setting(minimum=0, remedy="0 leaves the number to torch.")
    compile: bool | None = setting()
    # Hardware.
    accelerator: str | None = setting(one_of=("auto", "cpu", "gpu", "cuda", "mps"))
    devices: int | str | None = setting(remedy="A number, or auto.")
    num_nodes: int | None = setting(minimum=1)
    strategy: str | None = setting()
    precision: int | str | None = setting(one_of=PRECISIONS)
    sync_batchnorm: bool | None = setting()
    benchmark: bool | None = setting()
    deterministic: bool | str | None = setting(one_of=(True, False, "warn"))
    use_distributed_sampler: bool | None = setting()
    # Schedule. Lightning takes -1 epochs as "for ever".
    max_epochs: int | None = setting(minimum=1)
    min_epochs: int | None = setting(minimum=1)
    max_steps: int | None = setting(minimum=1)
    min_steps: int | None = setting(minimum=1)
    max_time: str | None = setting()
    accumulate_grad_batches: int | None = setting(minimum=1)
    gradient_clip_val: float | None = setting(above=0.0)
    gradient_clip_algorithm: str | None = setting(one_of=("norm", "value"))
    check_val_every_n_epoch: int | None = setting(minimum=1)
    val_check_interval: int | float | None = setting(above=0)
    num_sanity_val_steps: int | None = setting(minimum=0)
    reload_dataloaders_every_n_epochs: int | None = setting(minimum=0)
    # Cut short, for a quick look.
    fast_dev_run: bool | int | None = setting(minimum=0)
    overfit_batches: int | float | None = setting(minimum=0)
    limit_train_batches: int | float | None = setting(above=0, remedy="Leave it out to train on all batches.")
    limit_val_batches: int | float | None = setting(minimum=0)
    limit_test_batches: int | float | None = setting(minimum=0)
    limit_predict_batches: int | float | None = setting(minimum=0)
    # What is shown.
    log_every_n_steps: int | None = setting(minimum=1)
    enable_progress_bar: bool | None = setting()
    enable_model_summary: bool | None = setting()
    profiler: str | None = setting(one_of=("simple", "advanced", "pytorch"))
    detect_anomaly: bool | None = setting()
    inference_mode: bool | None = setting()
    barebones: bool | None = setting()


def check_trainer(values: Any, path: str, *, trained: bool = True) -> None:
    """Refuse unknown trainer arguments and impossible values.

    Args:
        values: ``trainer`` of the config, or of one stage.
        path: Its place in the config, for messages.
        trained: Whether there is anything to train; a stage that computes takes no trainer of its own.

    Raises:
        ConfigError: For an unknown key, a wrong type, or a value out of bounds.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} must be a mapping of names to values, got {values!r}.")
    if values and not trained:
        raise ConfigError(
            f"{path} is given, but this stage trains nothing, so it would have no effect. Remove "
            f"{', '.join(f'{path}.{name}' for name in values)}."
        )
    absent = {field.name: None for field in dataclasses.fields(TrainerSettings)}
    settings = build_settings(TrainerSettings, {**absent, **values}, path)
    _check_devices(values.get("devices"), f"{path}.devices")
    if "max_epochs" in values and settings.max_epochs is None:
        key = f"{path}.max_epochs"
        raise ConfigError(f"{key} must be ≥ 1, got None. Say how many: {key}=NUMBER.", key=key)
    for name in SHARES:
        _check_share(getattr(settings, name), f"{path}.{name}")


def check_private_trainer(values: Mapping[str, Any], path: str) -> None:
    """Refuse trainer arguments under which a step of DP-SGD is not what is paid for.

    Args:
        values: Of a stage that trains at a finite ε, all of its arguments.
        path: The stage's place in the config, for messages.

    Raises:
        ConfigError: Naming the argument, its value and what to say instead.
    """
    refused = {
        "precision": (FULL_PRECISIONS, "rounded norms bound no gradient. Say trainer.precision=32-true"),
        "accumulate_grad_batches": (
            (None, 1),
            "every step is paid for by itself. Raise federated.batch_size",
        ),
        "gradient_clip_val": (
            (None,),
            "every record's gradient is clipped, to privacy.encoder.clip_norm. Set that",
        ),
    }
    for name, (allowed, remedy) in refused.items():
        value = values.get(name)
        if value not in allowed:
            raise ConfigError(
                f"{path} trains at a finite ε, which trainer.{name}={value} does not fit: {remedy}.",
                key=f"trainer.{name}",
            )


def _check_devices(devices: Any, key: str) -> None:
    is_number = isinstance(devices, int) and not isinstance(devices, bool)
    if devices is None or devices == "auto" or (is_number and devices >= 1):
        return
    raise ConfigError(f"{key} must be a number ≥ 1 or auto, got {devices!r}. Say {key}=1.", key=key)


def _check_share(value: Any, key: str) -> None:
    """Lightning reads a whole number as batches and a fraction as a share of them."""
    if isinstance(value, float) and not 0.0 <= value <= 1.0:
        raise ConfigError(
            f"{key} must be a whole number of batches or a share between 0.0 and 1.0, got {value!r}.", key=key
        )
