"""ChestMNIST held in memory."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from fedsynth.data.batches import tensor_loader
from fedsynth.data.medmnist import MedMNISTData, read_medmnist


class ChestMNISTData(L.LightningDataModule):
    """Images normalized by the training mean and deviation after /255 (Eq. 6), with their 14 labels.

    Args:
        path: An ``.npz`` in the MedMNIST layout.
        batch_size: Records per step of this process.
        seed: Of the batch order.
        rank: This process.
        world_size: Processes that share the batches.
    """

    def __init__(self, path: Any, *, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        super().__init__()
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        data = read_medmnist(path)
        train = data.images["train"] / 255.0
        self.mean, self.std = float(train.mean()), float(train.std())
        self.tensors = {split: self._tensors(data, split) for split in ("train", "val", "test")}

    def _tensors(self, data: MedMNISTData, split: str) -> dict[str, Tensor]:
        image = torch.from_numpy(data.images[split]).float().div_(255).sub_(self.mean).div_(self.std)
        return {"image": image.unsqueeze(1), "label": torch.from_numpy(data.labels[split])}

    def positive_weight(self) -> list[float]:
        """w_l = negatives / positives from training counts (Eq. 10); 1 for a label without positives."""
        label = self.tensors["train"]["label"]
        positives = label.sum(0)
        weight = (len(label) - positives) / positives.clamp(min=1)
        return torch.where(
            positives > 0, weight, torch.ones_like(weight)
        ).tolist()  # fidelity: label-without-positives

    def train_dataloader(self) -> Any:
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> Any:
        return self._loader("val", shuffle=False)

    def _loader(self, split: str, *, shuffle: bool) -> Any:
        return tensor_loader(
            self.tensors[split], batch_size=self.batch_size, shuffle=shuffle, seed=self.seed,
            rank=self.rank, world_size=self.world_size, pad=shuffle,
        )  # fmt: skip
