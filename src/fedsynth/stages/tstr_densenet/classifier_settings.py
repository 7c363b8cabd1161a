"""How a DenseNet is built and trained: settings that all stages which train one share. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting

SLIM = "slim_densenet"


@dataclass(frozen=True)
class ClassifierSettings:
    """Network, input and schedule; the number of epochs is ``trainer.max_epochs``."""

    network: str = setting(remedy="slim_densenet, or a DenseNet of timm such as densenet121.")
    growth_rate: int = setting(minimum=1)
    block_config: list[int] = setting(minimum=1)
    num_init_features: int = setting(minimum=1)
    weights: str | None = setting(remedy="Null, imagenet, or a local file.", is_file=True)
    input_size: int | None = setting(minimum=16, remedy="Null leaves images at their size.")
    augmentation: str = setting(one_of=("none", "shift", "crop_flip"))
    max_shift: int = setting(minimum=0)
    test_views: str = setting(one_of=("one", "ten_crop"))
    resize_size: int = setting(minimum=16)
    class_weights: str = setting(one_of=("none", "balanced"))
    optimizer: str = setting(one_of=("adam", "adamw"))
    learning_rate: float = setting(above=0.0, maximum=10.0)
    weight_decay: float = setting(minimum=0.0)
    schedule: str = setting(one_of=("constant", "cosine", "plateau"))
    plateau_factor: float = setting(above=0.0, below=1.0)
    plateau_patience: int = setting(minimum=0)
    batch_size: int = setting(minimum=2)
    steps_per_epoch: int | None = setting(minimum=1, remedy="Null is one pass over the training images.")
    evaluation_batch_size: int = setting(minimum=1, in_key=False)

    def check(self, path: str) -> None:
        if self.network != SLIM and not self.network.startswith("densenet"):
            raise ConfigError(
                f"{path}.network must be {SLIM} or a DenseNet of timm such as densenet121, got {self.network!r}.",
                key=f"{path}.network",
            )
        if self.network == SLIM and not 1 <= len(self.block_config) <= 4:
            raise ConfigError(
                f"{path}.block_config must hold one to four blocks, got {self.block_config}.",
                key=f"{path}.block_config",
            )
        if self.network == SLIM and self.weights is not None:
            raise ConfigError(
                f"{path}.weights must be null for {SLIM}, which starts from random weights, got {self.weights!r}.",
                key=f"{path}.weights",
            )
        if self.weights not in (None, "imagenet") and not Path(self.weights).expanduser().is_file():
            raise ConfigError(
                f"{path}.weights must be imagenet, null or a file of weights, but there is none at {self.weights}. "
                "Set image_classifier.weights.",
                key=f"{path}.weights",
            )
        if self.network != SLIM and self.input_size is not None and self.input_size < 32:
            raise ConfigError(
                f"{path}.input_size must be ≥ 32 for {self.network}, got {self.input_size}.",
                key=f"{path}.input_size",
            )
        self._check_crops(path)

    def _check_crops(self, path: str) -> None:
        if self.augmentation != "crop_flip" and self.test_views != "ten_crop":
            return
        if self.input_size is None:
            raise ConfigError(
                f"{path}.input_size must be a number where images are cropped (augmentation={self.augmentation}, "
                f"test_views={self.test_views}), got null.",
                key=f"{path}.input_size",
            )
        if self.resize_size < self.input_size:
            raise ConfigError(
                f"{path}.resize_size must be at least input_size = {self.input_size}, the size of a crop, "
                f"got {self.resize_size}.",
                key=f"{path}.resize_size",
            )
