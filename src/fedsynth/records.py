"""The frozen records that cross stages, and the shape checks they share.

Each record turns into a flat dictionary of tensors and back, which is what safetensors stores; scalars
travel in it as 0-d float64 tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.errors import ArtifactError, DataError, PrivacyError


class InvalidTensorError(DataError, ValueError):
    """A tensor has the wrong shape or dtype, or holds values that mean nothing where it is used."""


def check_tensor(
    tensor: object, name: str, *, ndim: int | None = None, shape: tuple[int, ...] | None = None
) -> Tensor:
    """``tensor`` itself, if it is a finite floating tensor of the given rank or shape.

    Raises:
        InvalidTensorError: Naming the tensor, what it should be and what it is.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        got = f"dtype {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InvalidTensorError(
            f"{name} must be a floating-point torch tensor, got {got}. Convert it first."
        )
    if ndim is not None and tensor.ndim != ndim:
        raise InvalidTensorError(f"{name} must have {ndim} axes, got shape {tuple(tensor.shape)}.")
    if shape is not None and tuple(tensor.shape) != shape:
        raise InvalidTensorError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}.")
    if not bool(torch.isfinite(tensor).all()):
        count = int((~torch.isfinite(tensor)).sum())
        raise InvalidTensorError(
            f"{name} holds {count} NaN or infinite values of {tensor.numel()}. "
            "Look for a diverged model or a damaged artifact upstream."
        )
    return tensor


def check_indices(*, num_records: int | None = None, **indices: object) -> None:
    """Refuse anything but one-dimensional int64 tensors of one length.

    Args:
        num_records: The length asked for; None asks only for equal lengths.
        **indices: The tensors, by the name to call them in the message.

    Raises:
        InvalidTensorError: Naming the tensor and what it is, or all lengths.
    """
    lengths = {} if num_records is None else {"latents": num_records}
    for name, index in indices.items():
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.ndim != 1:
            shape = (
                f"{index.dtype} {tuple(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
            )
            raise InvalidTensorError(f"{name} must be a one-dimensional int64 torch tensor, got {shape}.")
        lengths[name] = len(index)
    if len(set(lengths.values())) > 1:
        raise InvalidTensorError(f"One entry per record is needed, got the lengths {lengths}.")


@dataclass(frozen=True, eq=False)
class ShardRelease:
    """The noisy shard means of every client, with what the server needs beside them (FedDP-PALD Eq. (20)).

    Only ``means`` is protected. ``variances`` and ``counts`` are released WITHOUT noise, as in the paper,
    and so are the clipping radius and the noise level.

    Attributes:
        means: μ̃_{k,c,r}, noisy means of clipped latents; zero where the count is zero.
        variances: Diagonal of Σ_{k,c,r}, population variance of clipped latents. NOT noised.
        counts: n_{k,c,r}, records per shard; public under fixed-size adjacency.
        noise_std: σ_{k,c,r}, standard deviation of the noise in every coordinate of a mean.
        clip_radius: C, in latent units.
        epsilon: ε of the whole release for one record; ∞ for no noise.
        delta: δ of the whole release for one record.

    Raises:
        InvalidTensorError: At construction, for inconsistent shapes, dtypes or impossible values.
        PrivacyError: If ε is finite but some released mean carries no noise.
    """

    means: Float[Tensor, "client class shard dim"]
    variances: Float[Tensor, "client class shard dim"]
    counts: Int64[Tensor, "client class shard"]
    noise_std: Float[Tensor, "client class shard"]
    clip_radius: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_tensor(self.means, "means", ndim=4)
        check_tensor(self.variances, "variances", shape=tuple(self.means.shape))
        cells = tuple(self.means.shape[:3])
        if not isinstance(self.counts, Tensor) or self.counts.dtype != torch.int64:
            raise InvalidTensorError("counts must be an int64 tensor [client, class, shard].")
        if tuple(self.counts.shape) != cells:
            raise InvalidTensorError(f"counts must have shape {cells}, got {tuple(self.counts.shape)}.")
        check_tensor(self.noise_std, "noise_std", shape=cells)
        for name in ("variances", "counts", "noise_std"):
            if bool((getattr(self, name) < 0).any()):
                raise InvalidTensorError(f"{name} must not be negative anywhere.")
        if not 0 < self.clip_radius < math.inf or not self.epsilon >= 0 or not 0 <= self.delta < 1:
            raise InvalidTensorError(
                f"A release needs 0 < clip_radius < inf, epsilon >= 0 and 0 <= delta < 1, got clip_radius="
                f"{self.clip_radius}, epsilon={self.epsilon}, delta={self.delta}."
            )
        if math.isfinite(self.epsilon) and bool((self.noise_std[self.counts > 0] == 0).any()):
            raise PrivacyError(
                f"The release claims epsilon={self.epsilon} but some non-empty shard has noise_std 0. "
                "Use epsilon=inf for a release without noise."
            )

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dictionary for safetensors."""
        tensors = {"means": self.means, "variances": self.variances, "counts": self.counts}
        tensors["noise_std"] = self.noise_std
        for name in ("clip_radius", "epsilon", "delta"):
            tensors[name] = torch.tensor(getattr(self, name), dtype=torch.float64)
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> ShardRelease:
        """The inverse of :meth:`to_tensors`.

        Raises:
            ArtifactError: If a tensor is missing or unknown.
        """
        check_keys(tensors, set(cls.__dataclass_fields__), "shard release")
        return cls(
            means=tensors["means"],
            variances=tensors["variances"],
            counts=tensors["counts"],
            noise_std=tensors["noise_std"],
            clip_radius=float(tensors["clip_radius"]),
            epsilon=float(tensors["epsilon"]),
            delta=float(tensors["delta"]),
        )


@dataclass(frozen=True, eq=False)
class Mixture:
    """One Gaussian mixture per class: FedDP-PALD Eq. (3), diagonal unless there are factors.

    Attributes:
        weights: π̃_{c,r}; every class sums to 1. A component of weight 0 is never drawn.
        means: μ̃_{c,r}, in latent units.
        variances: Diagonal of Σ̃_{c,r}, > 0.
        factors: F_{c,r} of a covariance diag(variances) + F Fᵀ; None for a diagonal one.

    Raises:
        InvalidTensorError: At construction, for inconsistent shapes or impossible values.
    """

    weights: Float[Tensor, "class component"]
    means: Float[Tensor, "class component dim"]
    variances: Float[Tensor, "class component dim"]
    factors: Float[Tensor, "class component dim rank"] | None = None

    def __post_init__(self) -> None:
        check_tensor(self.means, "means", ndim=3)
        check_tensor(self.variances, "variances", shape=tuple(self.means.shape))
        if self.factors is not None:
            rank = check_tensor(self.factors, "factors", ndim=4).shape[-1]
            check_tensor(self.factors, "factors", shape=(*self.means.shape, rank))
        check_tensor(self.weights, "weights", shape=tuple(self.means.shape[:2]))
        if not bool((self.variances > 0).all()):
            raise InvalidTensorError("variances must be > 0 everywhere. Use a positive variance floor.")
        sums = self.weights.double().sum(dim=1)
        if bool((self.weights < 0).any()) or bool(((sums - 1).abs() > 1e-6).any()):
            raise InvalidTensorError(
                f"weights must be >= 0 and sum to 1 in every class, got the sums {sums.tolist()}."
            )

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dictionary for safetensors; without ``factors`` if there are none."""
        tensors = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Mixture:
        """The inverse of :meth:`to_tensors`.

        Raises:
            ArtifactError: If a tensor is missing or unknown.
        """
        optional = {"factors"} & set(tensors)
        check_keys(tensors, set(cls.__dataclass_fields__) - {"factors"} | optional, "mixture")
        return cls(**tensors)


def check_keys(tensors: Mapping[str, Tensor], expected: set[str], what: str) -> None:
    """Refuse a stored record with other tensors than expected.

    Raises:
        ArtifactError: Naming what is missing and what is unknown.
    """
    if set(tensors) != expected:
        raise ArtifactError(
            f"A stored {what} has missing tensors {sorted(expected - set(tensors))} and unknown tensors "
            f"{sorted(set(tensors) - expected)}. It was written by another version; run its stage again."
        )
