"""Components chosen from the data, paid for: cells of equal mass along the first direction, class by class."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.privacy.parameters import check_count, check_noise_std, check_positive
from fedsynth.records import InvalidTensorError, check_indices, check_tensor

# Bins below this many noise standard deviations count as empty.
_NOISE_BINS = 2.0


def class_histograms(
    coordinate: Float[Tensor, " n"],
    labels: Int64[Tensor, " n"],
    clients: Int64[Tensor, " n"],
    *,
    radius: float,
    num_bins: int,
    num_clients: int,
    num_classes: int,
) -> Float[Tensor, "client class bin"]:
    """Exact counts on the uniform public grid over [-C, C]; values outside fall into the outer bins.

    Nothing is protected yet. One record replaced by any other of its client moves the counts of that client by
    at most √2 in L2.

    Raises:
        InvalidTensorError: For bad coordinates or indices.
        PrivacyParameterError: If the radius or a number is out of range.
    """
    coordinate = check_tensor(coordinate, "coordinate", ndim=1).double()
    check_indices(num_records=len(coordinate), labels=labels, clients=clients)
    num_bins, radius = check_count(num_bins, "num_bins"), check_positive(radius, "radius")
    position = ((coordinate + radius) / (2 * radius) * num_bins).floor().clamp(0, num_bins - 1).long()
    cell = (clients * num_classes + labels) * num_bins + position
    counts = torch.bincount(cell, minlength=num_clients * num_classes * num_bins)
    return counts.double().reshape(num_clients, num_classes, num_bins)


def equal_mass_cells(
    histogram: Float[Tensor, " bin"], *, noise_std: float, radius: float, num_components: int
) -> Float[Tensor, "component 2"]:
    """Lower and upper bounds of cells that hold equal shares of a noisy histogram on [-C, C]. Post-processing.

    Bins below two noise standard deviations count as empty; the cells span from the first to the last bin that is
    left and mass is spread evenly inside a bin. Without any such bin there is one cell over all of [-C, C].

    Args:
        histogram: Pooled noisy counts; may be negative.
        noise_std: Of every pooled count.
        radius: C, in latent units.
        num_components: Cells wanted, ≥ 1.

    Raises:
        InvalidTensorError: If the histogram is empty or not finite.
        PrivacyParameterError: If a number is out of range.
    """
    histogram = check_tensor(histogram, "histogram", ndim=1).double()
    num_components = check_count(num_components, "num_components")
    radius, noise_std = check_positive(radius, "radius"), check_noise_std(noise_std, "noise_std")
    if len(histogram) == 0:
        raise InvalidTensorError("histogram must have at least one bin, got none.")
    mass = torch.where(histogram >= _NOISE_BINS * noise_std, histogram, 0.0).clamp_min(0)
    edges = np.linspace(-radius, radius, len(histogram) + 1)
    occupied = torch.nonzero(mass).flatten()
    if len(occupied) == 0:
        return torch.tensor([[-radius, radius]], dtype=torch.float64)
    first, last = int(occupied[0]), int(occupied[-1]) + 1
    cumulative = np.concatenate([[0.0], mass.cumsum(0).numpy()]) / float(mass.sum())
    # A slope of nearly nothing, so that quantiles inside an empty stretch are defined.
    cumulative = cumulative[first : last + 1] + np.arange(last - first + 1) * 1e-12
    inner = np.interp(np.arange(1, num_components) / num_components, cumulative, edges[first : last + 1])
    cuts = np.concatenate([edges[first : first + 1], inner, edges[last : last + 1]])
    return torch.from_numpy(np.stack([cuts[:-1], cuts[1:]], axis=1))
