"""The frozen records of a release of moments: the frame it is measured in, and what the clients sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedsynth.errors import PrivacyError
from fedsynth.privacy.clipping import clip_to_radius
from fedsynth.records import InvalidTensorError, check_indices, check_keys, check_tensor


@dataclass(frozen=True, eq=False)
class MomentFrame:
    """Where a record is counted and in which coordinates: all of it follows from earlier noisy releases.

    A cell is one component of one class. The coordinates of a record in cell b are u = (Vᵀ h̄ - origin_b) / scale_b,
    clipped to ‖u‖ ≤ κ, with h̄ the latent clipped to C.

    Attributes:
        basis: V, orthonormal columns.
        labels: Class of each cell, ascending; the cells of a class are ordered along the first coordinate.
        bounds: Lower and upper bound of each cell in the first coordinate. The outer cells are open ended.
        origin: Of the coordinates of each cell.
        scale: Of the coordinates, > 0, in latent units.
        clip_radius: C, in latent units.
        coordinate_radius: κ, in scaled units.
    """

    basis: Float[Tensor, "dim rank"]
    labels: Int64[Tensor, " cell"]
    bounds: Float[Tensor, "cell 2"]
    origin: Float[Tensor, "cell rank"]
    scale: Float[Tensor, "cell rank"]
    clip_radius: float
    coordinate_radius: float

    def __post_init__(self) -> None:
        rank = check_tensor(self.basis, "basis", ndim=2).shape[1]
        check_indices(labels=self.labels)
        num_cells = len(self.labels)
        check_tensor(self.bounds, "bounds", shape=(num_cells, 2))
        check_tensor(self.origin, "origin", shape=(num_cells, rank))
        check_tensor(self.scale, "scale", shape=(num_cells, rank))
        radii = (self.clip_radius, self.coordinate_radius)
        if num_cells == 0 or not bool((self.scale > 0).all()) or not all(0 < r < math.inf for r in radii):
            raise InvalidTensorError(
                f"A frame needs at least one cell, scale > 0 and finite radii > 0, got {num_cells} cells, smallest "
                f"scale {float(self.scale.min()) if num_cells else math.nan}, radii {radii}."
            )

    def cells(self, latents: Float[Tensor, "n dim"], labels: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The cell of every record.

        Raises:
            InvalidTensorError: If a record's class has no cell.
        """
        first = clip_to_radius(latents, self.clip_radius) @ self.basis[:, 0]
        cell = torch.full_like(labels, -1)
        for label in torch.unique(self.labels).tolist():
            own, inside = torch.nonzero(self.labels == label).flatten(), labels == label
            cell[inside] = own[
                torch.bucketize(first[inside], self.bounds[own[:-1], 1].contiguous(), right=True)
            ]
        if bool((cell < 0).any()):
            unknown = torch.unique(labels[cell < 0]).tolist()
            raise InvalidTensorError(f"The frame has no cell for the classes {unknown}.")
        return cell

    def coordinates(
        self, latents: Float[Tensor, "n dim"], cells: Int64[Tensor, " n"]
    ) -> Float[Tensor, "n rank"]:
        """u of every record, ‖u‖ ≤ κ."""
        projected = clip_to_radius(latents, self.clip_radius) @ self.basis
        return clip_to_radius((projected - self.origin[cells]) / self.scale[cells], self.coordinate_radius)


@dataclass(frozen=True, eq=False)
class MomentRelease:
    """Noisy counts, sums and second moments of every client and cell. Everything in it is covered by (ε, δ).

    Attributes:
        frame: Where the records were counted.
        eigenvalues: Noisy second moment along the columns of the basis.
        residual_variance: Noisy variance per direction outside the basis, ≥ 0.
        radii: Private radii of the rounds.
        class_counts: Noisy counts.
        participates: Whether a client's cells of a class are used: its noisy class count is large enough.
        counts: Noisy counts; may be negative.
        sums: Noisy Σ u.
        second_moments: Noisy Σ u uᵀ, symmetric.
        count_std: Noise of a count of one client.
        sum_std: Noise of an entry of a sum of one client.
        second_moment_std: Noise of a diagonal entry of a second moment of one client; 1/√2 of it off the diagonal.
        epsilon: ε of the whole release; ∞ for no noise.
        delta: δ of the whole release.

    Raises:
        InvalidTensorError: At construction, for inconsistent shapes or impossible values.
        PrivacyError: If ε is finite but something carries no noise.
    """

    frame: MomentFrame
    eigenvalues: Float[Tensor, " rank"]
    residual_variance: float
    radii: Float[Tensor, " round"]
    class_counts: Float[Tensor, "client class"]
    participates: Bool[Tensor, "client class"]
    counts: Float[Tensor, "client cell"]
    sums: Float[Tensor, "client cell rank"]
    second_moments: Float[Tensor, "client cell rank rank"]
    count_std: float
    sum_std: float
    second_moment_std: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        num_cells, rank = self.frame.origin.shape
        num_clients = check_tensor(self.class_counts, "class_counts", ndim=2).shape[0]
        check_tensor(self.eigenvalues, "eigenvalues", shape=(rank,))
        check_tensor(self.radii, "radii", ndim=1)
        check_tensor(self.counts, "counts", shape=(num_clients, num_cells))
        check_tensor(self.sums, "sums", shape=(num_clients, num_cells, rank))
        check_tensor(self.second_moments, "second_moments", shape=(num_clients, num_cells, rank, rank))
        if self.participates.dtype != torch.bool or self.participates.shape != self.class_counts.shape:
            raise InvalidTensorError("participates must be a boolean tensor shaped like class_counts.")
        levels = (self.count_std, self.sum_std, self.second_moment_std)
        if not all(0 <= level < math.inf for level in (*levels, self.residual_variance)):
            raise InvalidTensorError(f"noise levels and variances must be finite and >= 0, got {levels}.")
        if math.isfinite(self.epsilon) and not min(levels) > 0:
            raise PrivacyError(
                f"The release claims epsilon={self.epsilon} but its noise levels are {levels}. Use epsilon=inf for "
                "a release without noise."
            )

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dictionary for safetensors; the frame's tensors are named ``frame.…``."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "frame"}
        values |= {f"frame.{name}": getattr(self.frame, name) for name in self.frame.__dataclass_fields__}
        return {
            name: value.contiguous()
            if isinstance(value, Tensor)
            else torch.tensor(value, dtype=torch.float64)
            for name, value in values.items()
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> MomentRelease:
        """The inverse of :meth:`to_tensors`.

        Raises:
            ArtifactError: If a tensor is missing or unknown.
        """
        own = set(cls.__dataclass_fields__) - {"frame"}
        frame = {f"frame.{name}" for name in MomentFrame.__dataclass_fields__}
        check_keys(tensors, own | frame, "moment release")
        values: dict[str, Any] = {
            name: float(tensor) if tensor.ndim == 0 else tensor for name, tensor in tensors.items()
        }
        parts = {name.removeprefix("frame."): values[name] for name in frame}
        return cls(frame=MomentFrame(**parts), **{name: values[name] for name in own})
