"""The frozen record of class prototypes, and the checks that everything about them shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedsynth.errors import ArtifactError, DataError
from fedsynth.records import InvalidTensorError, check_indices, check_tensor


@dataclass(frozen=True, eq=False)
class ClassPrototypes:
    """One mean embedding per modality and class: what a client sends, or the server's bank.

    Attributes:
        mean: By modality, float32, in units of the embedding; zeros where the count is 0.
        count: By modality, the records behind each mean; 0: the class is unknown.

    Raises:
        InvalidTensorError: At construction, for other modalities in ``mean`` than in ``count``, none at all, another
            dtype, inconsistent shapes, a negative count, or a mean other than 0 without any record.
    """

    mean: dict[str, Float[Tensor, "class dim"]]
    count: dict[str, Int64[Tensor, " class"]]

    def __post_init__(self) -> None:
        if not self.mean or self.mean.keys() != self.count.keys():
            raise InvalidTensorError(
                f"Prototypes need means and counts of the same modalities, at least one, got means of "
                f"{sorted(self.mean)} and counts of {sorted(self.count)}."
            )
        for modality in self.mean:
            _check_modality(modality, self.mean[modality], self.count[modality])
        if len({len(count) for count in self.count.values()}) > 1:
            sizes = {modality: len(count) for modality, count in self.count.items()}
            raise InvalidTensorError(f"All modalities must have the same classes, got {sizes} of them.")

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities, in the order given."""
        return tuple(self.mean)

    @property
    def num_classes(self) -> int:
        """C, the number of classes, known or not."""
        return len(next(iter(self.count.values())))

    def known(self, modality: str) -> Bool[Tensor, " class"]:
        """Which classes have a prototype in this modality.

        Raises:
            DataError: If there is no such modality.
        """
        if modality not in self.count:
            raise DataError(f"There are no prototypes of {modality!r}, only of {list(self.modalities)}.")
        return self.count[modality] > 0

    def to(self, device: torch.device | str) -> ClassPrototypes:
        """The same prototypes on another device."""
        return ClassPrototypes(
            mean={modality: mean.to(device) for modality, mean in self.mean.items()},
            count={modality: count.to(device) for modality, count in self.count.items()},
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dictionary for safetensors: ``mean/<modality>`` and ``count/<modality>``."""
        tensors = {f"mean/{modality}": mean for modality, mean in self.mean.items()}
        tensors |= {f"count/{modality}": count for modality, count in self.count.items()}
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> ClassPrototypes:
        """The inverse of :meth:`to_tensors`.

        Raises:
            ArtifactError: If a name is not of this form, or a modality lacks its mean or count.
            InvalidTensorError: If the tensors are no prototypes.
        """
        parts: dict[str, dict[str, Tensor]] = {"mean": {}, "count": {}}
        for name, tensor in tensors.items():
            part, _, modality = name.partition("/")
            if part not in parts or not modality:
                raise ArtifactError(
                    f"Stored prototypes hold an unknown tensor {name!r}; expected mean/<modality> and "
                    "count/<modality>. It was written by another version; run its stage again."
                )
            parts[part][modality] = tensor
        if not parts["mean"] or parts["mean"].keys() != parts["count"].keys():
            raise ArtifactError(
                f"Stored prototypes have means of {sorted(parts['mean'])} and counts of "
                f"{sorted(parts['count'])}; each modality needs both. Run the stage that wrote them again."
            )
        return cls(mean=parts["mean"], count=parts["count"])


def check_alike(first: ClassPrototypes, second: ClassPrototypes) -> None:
    """Refuse two sets of prototypes of different modalities, classes or dimensions.

    Raises:
        DataError: With the shapes of both.
    """
    shapes = [{m: tuple(mean.shape) for m, mean in sorted(p.mean.items())} for p in (first, second)]
    if shapes[0] != shapes[1]:
        raise DataError(
            f"Prototypes [class, dim] of different modalities or shapes: {shapes[0]} and {shapes[1]}. "
            "All clients and the bank must come from one model."
        )


def check_labels(label: Int64[Tensor, " b"], num_classes: int) -> None:
    """Refuse labels outside [0, num_classes).

    Raises:
        InvalidTensorError: With the range found.
    """
    if label.numel() == 0:
        return
    low, high = (int(end) for end in label.aminmax())
    if low < 0 or high >= num_classes:
        raise InvalidTensorError(f"label must lie in [0, {num_classes}), got values from {low} to {high}.")


def check_present(present: object, num_records: int, name: str = "present") -> None:
    """Refuse anything but one boolean per record.

    Raises:
        InvalidTensorError: Naming the mask and what it is.
    """
    if not isinstance(present, Tensor) or present.dtype != torch.bool or present.shape != (num_records,):
        got = (
            f"{present.dtype} {tuple(present.shape)}"
            if isinstance(present, Tensor)
            else type(present).__name__
        )
        raise InvalidTensorError(f"{name} must be a boolean tensor [{num_records}], got {got}.")


def _check_modality(modality: str, mean: Tensor, count: Tensor) -> None:
    check_tensor(mean, f"mean[{modality!r}]", ndim=2)
    counts: dict[str, object] = {f"count[{modality!r}]": count}
    check_indices(num_records=None, **counts)
    if mean.dtype != torch.float32 or len(mean) != len(count) or math.prod(mean.shape) == 0:
        raise InvalidTensorError(
            f"mean[{modality!r}] must be float32 [class, dim] with one row per count ({len(count)}) and no empty "
            f"axis, got {mean.dtype} {tuple(mean.shape)}."
        )
    if bool((count < 0).any()) or bool((mean[count == 0] != 0).any()):
        raise InvalidTensorError(
            f"Counts of {modality!r} must be >= 0 and a mean without records must be zeros, got the counts "
            f"{count.tolist()}."
        )
