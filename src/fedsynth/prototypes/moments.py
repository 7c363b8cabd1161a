"""A release that pays for everything: radius, subspace, counts, components, means and second moments.

Clients add their noise locally, the server pools what they send and broadcasts what the next step needs. Every message
is a Gaussian release of :class:`fedsynth.privacy.budget.GaussianBudget`; everything between two messages is
post-processing. Adjacency: replace one record of a client by any other, of whatever class; client sizes are public.

| step | part (share)     | message of client k                               | sensitivity |
|------|------------------|---------------------------------------------------|-------------|
| 1    | `radius`         | number of residual norms ≤ r, several times       | 1           |
| 2    | `subspace`       | Σ e eᵀ of clipped residuals, once a round          | √2 C_j²     |
| 3    | `counts`         | records of every class                            | √2          |
| 4    | `histogram`      | records per class and bin of the first coordinate | √2          |
| 5    | `means`          | (κ · count, Σ u) of every cell                    | 2κ          |
| 6    | `second_moments` | Σ u uᵀ of every cell                               | √2 κ²       |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedsynth.errors import PrivacyError
from fedsynth.privacy.budget import GaussianBudget, Noisy
from fedsynth.privacy.clipping import clip_to_radius
from fedsynth.privacy.composition import Composition
from fedsynth.privacy.ledger import LedgerEntry, LedgerPart
from fedsynth.privacy.parameters import check_positive
from fedsynth.privacy.sensitivity import (
    Adjacency,
    count_sensitivity,
    counted_sum_sensitivity,
    second_moment_sensitivity,
)
from fedsynth.prototypes.components import class_histograms, equal_mass_cells
from fedsynth.prototypes.moment_options import MomentOptions
from fedsynth.prototypes.moment_record import MomentFrame, MomentRelease
from fedsynth.prototypes.private_pca import PrivateSubspace, private_subspace
from fedsynth.records import InvalidTensorError, check_indices, check_tensor

COVERED = (
    "everything released: clipping radii, subspace, class counts, components, and noisy counts, sums and second moments "
    "of every client and component"
)
NOT_COVERED = (
    "the number of records of each client",
    "the encoder's weights and every update exchanged while training it (an entry of their own)",
    "a patient who contributes several records (the unit is one image-ECG pair)",
)


class ReleasedMoments(NamedTuple):
    """A release and the account of what it cost."""

    release: MomentRelease
    parts: tuple[LedgerPart, ...]


def release_moments(
    latents: Float[Tensor, "n dim"],
    labels: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    *,
    num_classes: int,
    options: MomentOptions,
    budget: GaussianBudget,
) -> ReleasedMoments:
    """Noisy moments of every client and cell; (ε, δ)-DP under REPLACE_ONE_ANY_LABEL, the radius included.

    Covered: everything that is returned. NOT covered: the number of records of each client (public), and the
    encoder that made the latents. The unit is one record.

    Args:
        latents: One per record.
        labels: Class of each record.
        clients: Client of each record.
        num_classes: Number of classes.
        options: How it is made.
        budget: From :func:`moment_budget`, not yet spent.

    Raises:
        PrivacyError: If the budget is too small for a radius, for any direction, or for a class (no client has
            enough noisy records of it); the message says what to raise.
        InvalidTensorError: For wrong shapes or dtypes, non-finite latents, or indices out of range.
    """
    latents = check_tensor(latents, "latents", ndim=2).double().cpu()
    check_indices(num_records=len(latents), labels=labels, clients=clients)
    labels, clients = labels.cpu(), clients.cpu()
    for name, index, limit in (("labels", labels, num_classes), ("clients", clients, budget.num_clients)):
        if len(index) == 0 or int(index.min()) < 0 or int(index.max()) >= limit:
            raise InvalidTensorError(f"{name} must hold at least one value, all in [0, {limit}).")
    latents, labels, clients = _in_canonical_order(latents, labels, clients)
    subspace = private_subspace(
        latents,
        clients,
        budget,
        grid=options.grid,
        quantile=options.radius_quantile,
        slack=options.radius_slack,
        num_rounds=options.num_rounds,
        max_rank=options.max_rank,
        noise_edge=options.noise_edge,
    )
    class_counts = budget.release(
        "counts", _class_counts(labels, clients, budget.num_clients, num_classes), count_sensitivity()
    )
    participates = _participants(class_counts, options, budget)
    frame = _frame(latents, labels, clients, subspace, class_counts.values, participates, options, budget)
    cells = frame.cells(latents, labels)
    coordinates = frame.coordinates(latents, cells)
    counts, sums, second = release_cell_moments(coordinates, cells, clients, frame, budget)
    release = MomentRelease(
        frame=frame,
        eigenvalues=subspace.eigenvalues,
        residual_variance=subspace.residual_variance,
        radii=subspace.radii,
        class_counts=class_counts.values,
        participates=participates,
        counts=counts.values,
        sums=sums.values,
        second_moments=second.values,
        count_std=counts.std,
        sum_std=sums.std,
        second_moment_std=second.std,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )
    return ReleasedMoments(release, budget.parts)


def moments_ledger_entry(released: ReleasedMoments, *, stage: str, composition: Composition) -> LedgerEntry:
    """The ledger entry of a release of moments, with every part that the budget paid for."""
    release, parts = released
    num_releases = sum(part.num_releases for part in parts)
    if not math.isfinite(release.epsilon):
        published = (f"{COVERED}, without noise", *NOT_COVERED)
        return LedgerEntry.without_guarantee(stage=stage, published=published)
    return LedgerEntry(
        stage=stage,
        mechanism="Gaussian, several releases",
        epsilon=release.epsilon,
        delta=release.delta,
        adjacency=Adjacency.REPLACE_ONE_ANY_LABEL,
        covered=COVERED,
        not_covered=NOT_COVERED,
        num_releases=num_releases,
        sensitivity_range=(min(p.sensitivity for p in parts), max(p.sensitivity for p in parts)),
        noise_std_range=(min(p.noise_std for p in parts), max(p.noise_std for p in parts)),
        composition=f"adaptive over the parts ({composition.value}); parallel over clients",
        parts=parts,
    )


def release_cell_moments(
    coordinates: Float[Tensor, "n rank"],
    cells: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    frame: MomentFrame,
    budget: GaussianBudget,
) -> tuple[Noisy, Noisy, Noisy]:
    """Noisy counts, sums and second moments of every client and cell in a given frame: the last two messages.

    Counts cost nothing: scaled by κ they fit into the sensitivity of the sums.
    """
    radius, num_cells = frame.coordinate_radius, len(frame.labels)
    shape = (budget.num_clients, num_cells)
    flat = clients * num_cells + cells

    def summed(values: Float[Tensor, "n ..."]) -> Float[Tensor, "client cell ..."]:
        zeros = torch.zeros(shape[0] * shape[1], *values.shape[1:], dtype=torch.float64)
        return zeros.index_add(0, flat, values).reshape(*shape, *values.shape[1:])

    counted = torch.cat([torch.full((len(coordinates), 1), radius).double(), coordinates], dim=1)
    sums = budget.release("means", summed(counted), counted_sum_sensitivity(radius))
    products = coordinates.unsqueeze(2) * coordinates.unsqueeze(1)
    second = budget.release_symmetric("second_moments", summed(products), second_moment_sensitivity(radius))
    counts = Noisy(sums.values[..., 0] / radius, sums.std / radius)
    return counts, Noisy(sums.values[..., 1:], sums.std), second


def _in_canonical_order(
    latents: Float[Tensor, "n dim"], labels: Int64[Tensor, " n"], clients: Int64[Tensor, " n"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted by client, class and value: sums then do not depend on the order of the records, bit for bit."""
    order = torch.from_numpy(np.lexsort((*latents.T.numpy()[::-1], labels.numpy(), clients.numpy())))
    return latents[order], labels[order], clients[order]


def _class_counts(
    labels: Int64[Tensor, " n"], clients: Int64[Tensor, " n"], num_clients: int, num_classes: int
) -> Float[Tensor, "client class"]:
    counts = torch.bincount(clients * num_classes + labels, minlength=num_clients * num_classes)
    return counts.double().reshape(num_clients, num_classes)


def _participants(
    class_counts: Noisy, options: MomentOptions, budget: GaussianBudget
) -> Bool[Tensor, "client class"]:
    """Who is large enough to add more signal than noise; from noisy counts, so it costs nothing."""
    participates = class_counts.values >= options.min_class_records
    for label, largest in enumerate(class_counts.values.amax(dim=0).tolist()):
        if not bool(participates[:, label].any()):
            raise PrivacyError(
                f"No client has {options.min_class_records:g} records of class {label} by its noisy count (largest "
                f"{largest:.1f}, noise {class_counts.std:.3g}, epsilon={budget.epsilon:g}), so the class cannot be "
                "released. Lower min_class_records, raise epsilon or the share of the counts, or use fewer clients."
            )
    return participates


def _frame(
    latents: Float[Tensor, "n dim"],
    labels: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    subspace: PrivateSubspace,
    class_counts: Float[Tensor, "client class"],
    participates: Bool[Tensor, "client class"],
    options: MomentOptions,
    budget: GaussianBudget,
) -> MomentFrame:
    """Step 4: noisy histograms, then cells and their coordinates as post-processing."""
    radius = float(subspace.radii[0])
    num_classes, rank = class_counts.shape[1], subspace.basis.shape[1]
    exact = class_histograms(
        clip_to_radius(latents, radius) @ subspace.basis[:, 0],
        labels,
        clients,
        radius=radius,
        num_bins=options.num_bins,
        num_clients=budget.num_clients,
        num_classes=num_classes,
    )
    noisy = budget.release("histogram", exact, count_sensitivity())
    bounds, owners = [], []
    for label in range(num_classes):
        used = participates[:, label]
        records = float(class_counts[used, label].sum())
        cells = equal_mass_cells(
            noisy.values[used, label].sum(dim=0),
            noise_std=noisy.std * math.sqrt(int(used.sum())),
            radius=radius,
            num_components=max(1, min(options.num_components, int(records // options.min_cell_records))),
        )
        bounds.append(cells)
        owners += [label] * len(cells)
    limits = torch.cat(bounds)
    # A cell may be narrower than what the histogram can tell apart.
    half_width = ((limits[:, 1] - limits[:, 0]) / 2).clamp_min(radius / options.num_bins / 4)
    origin = torch.zeros(len(limits), rank, dtype=torch.float64)
    origin[:, 0] = limits.mean(dim=1)
    scale = subspace.eigenvalues.sqrt().repeat(len(limits), 1)
    scale[:, 0] = half_width
    return MomentFrame(
        basis=subspace.basis,
        labels=torch.tensor(owners),
        bounds=limits,
        origin=origin,
        scale=scale,
        clip_radius=radius,
        coordinate_radius=check_positive(options.clip_factor, "clip_factor") * math.sqrt(rank),
    )
