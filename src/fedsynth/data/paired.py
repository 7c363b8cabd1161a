"""Class-aligned X-ray/ECG pseudo-pairs and modality masks (FedDP-PALD Eqs. 6-9).

The two corpora share no patient: pairing by class means that the ECG carries the label by construction, so a
gain from fusion is no physiological finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from fedsynth.errors import ArtifactError, ConfigError

SPLITS = ("train", "val", "test")
GLOBAL = -1  # client of validation and test pairs


@dataclass(frozen=True)
class PairedSplit:
    """The pairs of one split, in the order of the images."""

    image: Float32[Tensor, "n 1 h w"]
    """Standardized by the training images, Eq. (6)."""
    ecg: Float32[Tensor, "n 1 t"]
    """Normalized per beat, then standardized by the training beats, Eq. (7)."""
    label: Int64[Tensor, " n"]
    """0 or 1, shared by both members of the pair."""
    client: Int64[Tensor, " n"]
    """Client that holds the pair; -1 in validation and test, which are global."""
    image_id: Int64[Tensor, " n"]
    """Position of the image in its official split."""
    beat_id: Int64[Tensor, " n"]
    """Position of the beat in `Beats`."""
    record_id: Int64[Tensor, " n"]
    """Number of the ECG record the beat comes from."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class PairingStatistics:
    """Training statistics of Eqs. (6) and (7); pooled over clients and taken without noise: no guarantee covers them."""

    image_mean: Float64[Tensor, ""]
    """μ_I, in units of grey value / 255."""
    image_std: Float64[Tensor, ""]
    ecg_mean: Float64[Tensor, ""]
    """μ_E of the per-beat normalized training beats; about 0 by construction."""
    ecg_std: Float64[Tensor, ""]
    """σ_E; about 1 by construction."""


@dataclass(frozen=True)
class PairedClients:
    """All pairs of a federation. The pairing is fixed, so "record" is well defined for privacy."""

    train: PairedSplit
    val: PairedSplit
    test: PairedSplit
    statistics: PairingStatistics
    report: dict[str, Any]
    """Counts by split and client, borrowed and dropped beats, reuse; plain JSON values."""

    def to_tensors(self) -> dict[str, Tensor]:
        """All but the report as a flat dict for safetensors: ``train/image`` to ``statistics/ecg_std``."""
        parts = {name: getattr(self, name) for name in (*SPLITS, "statistics")}
        return {
            f"{name}/{f.name}": getattr(p, f.name).contiguous()
            for name, p in parts.items()
            for f in fields(p)
        }

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], report: dict[str, Any] | None = None
    ) -> PairedClients:
        """Inverse of `to_tensors`.

        Raises:
            ArtifactError: If a key is missing.
        """

        def part(kind: type, name: str) -> Any:
            return kind(**{f.name: tensors[f"{name}/{f.name}"] for f in fields(kind)})

        try:
            train, val, test = (part(PairedSplit, name) for name in SPLITS)
            return cls(train, val, test, part(PairingStatistics, "statistics"), report or {})
        except KeyError as error:
            raise ArtifactError(f"Stored pairs lack the tensor {error}. Build the pairs again.") from error


def modality_masks(
    num: int, drop_probability: float, generator: torch.Generator
) -> Bool[Tensor, "num modality"]:
    """Availability of [image, ECG] for each pair.

    Implements FedDP-PALD Eq. (9): m ~ iid Bernoulli(1 - p) per modality, with at least one kept. If both
    drop, one of them, chosen uniformly, is restored; so P(both) = (1 - p)² and P(only one) = (1 - (1 - p)²) /
    2 for each.

    Args:
        num: Number of pairs.
        drop_probability: p in [0, 1]; 1 keeps exactly one modality.
        generator: Source of randomness.

    Raises:
        ConfigError: If p is outside [0, 1] or `num` is negative.
    """
    if not 0.0 <= drop_probability <= 1.0:
        raise ConfigError(f"drop_probability must be in [0, 1], got {drop_probability}. The paper uses 0.25.")
    if num < 0:
        raise ConfigError(f"The number of masks must be ≥ 0, got {num}.")
    kept = torch.rand(num, 2, generator=generator) >= drop_probability
    restored = torch.randint(
        2, (num,), generator=generator
    )  # always drawn: the stream does not depend on `kept`
    both_dropped = ~kept.any(dim=1)
    kept[both_dropped, restored[both_dropped]] = True  # fidelity: mask-restore
    return kept


def standardize(
    values: Float[np.ndarray, ...], mean: Float64[Tensor, ""], std: Float64[Tensor, ""]
) -> Float32[Tensor, ...]:
    """(values - mean) / std in float32, the last step of FedDP-PALD Eqs. (6) and (7).

    Raises:
        ConfigError: If std is not positive and finite: the training data is constant or holds NaN.
    """
    if not (torch.isfinite(std) and std > 0 and torch.isfinite(mean)):
        raise ConfigError(f"Cannot standardize by mean {mean.item()} and standard deviation {std.item()}.")
    return ((torch.from_numpy(np.asarray(values, dtype=np.float32)) - mean) / std).float()
