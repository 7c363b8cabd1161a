"""Signal to noise of every client and class: where the noise of a release drowns what it is about."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks import ReleasedMeans
from fedsynth.attacks.summary_scores import clip_latents
from fedsynth.pipeline.stage import Metric


@dataclass(frozen=True)
class SignalToNoise:
    """One client and class. Signal: the distance between the class means, of the client's own records if it has
    both classes, else of all records.

    Attributes:
        client, label: The cell.
        records: Records released.
        shards: Occupied shards.
        smallest_shard: Records in the smallest.
        noise_std: Noise per coordinate of its mean (the largest in the cell), in latent units.
        noise_norm: Root mean square length of that noise, σ √d.
        mean_norm: Length of the cell's exact mean of clipped latents.
        class_distance: ||μ_pos - μ_neg||.
        shard_snr: class_distance / noise_norm; below 1 the noise of a shard is longer than the classes are apart.
        direction_snr: class_distance / noise_std: the same along the one direction that matters.
        cell_snr: class_distance / noise length of the mean over all shards of the cell, weighted by size.
    """

    client: int
    label: int
    records: int
    shards: int
    smallest_shard: int
    noise_std: float
    noise_norm: float
    mean_norm: float
    class_distance: float
    shard_snr: float
    direction_snr: float
    cell_snr: float


def signal_to_noise(
    published: ReleasedMeans,
    latents: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    clients: Int[Tensor, " n"],
    clip_radius: float,
) -> list[SignalToNoise]:
    """A row for every client and class with an occupied shard, by client and class. Without noise: all ∞.

    The means are exact, so the table is for the auditor only.
    """
    clipped = clip_latents(latents.double(), clip_radius)
    pooled = _distance(clipped, labels)
    rows = []
    occupied = published.counts > 0
    cells = torch.stack([published.clients[occupied], published.labels[occupied]], dim=1)
    for client, label in torch.unique(cells, dim=0).tolist():
        own = clients == client
        distance = _distance(clipped[own], labels[own]) or pooled or 0.0
        shards = (published.clients == client) & (published.labels == label) & occupied
        counts, std = published.counts[shards].double(), published.noise_std[shards].double()
        largest, root_dim = float(std.max()), math.sqrt(clipped.shape[1])
        cell_std = float((counts * std).square().sum().sqrt() / counts.sum())
        rows.append(
            SignalToNoise(
                client=client,
                label=label,
                records=int(counts.sum()),
                shards=len(counts),
                smallest_shard=int(counts.min()),
                noise_std=largest,
                noise_norm=largest * root_dim,
                mean_norm=float(clipped[own & (labels == label)].mean(dim=0).norm()),
                class_distance=distance,
                shard_snr=_ratio(distance, largest * root_dim),
                direction_snr=_ratio(distance, largest),
                cell_snr=_ratio(distance, cell_std * root_dim),
            )
        )
    return rows


def _distance(latents: Tensor, labels: Tensor) -> float | None:
    """||μ_pos - μ_neg||, or None if a class is absent."""
    if not bool((labels == 0).any()) or not bool((labels == 1).any()):
        return None
    return float((latents[labels == 1].mean(dim=0) - latents[labels == 0].mean(dim=0)).norm())


def _ratio(signal: float, noise: float) -> float:
    return signal / noise if noise > 0 else math.inf


def snr_metrics(rows: list[SignalToNoise], seed: int) -> list[Metric]:
    """Smallest and median ratio, and the share of cells below 1; nothing without noise."""
    if not rows or any(math.isinf(row.shard_snr) for row in rows):
        return []
    values: dict[str, float] = {}
    for name in ("shard_snr", "cell_snr"):
        ratios = torch.tensor([getattr(row, name) for row in rows], dtype=torch.float64)
        values |= {
            f"{name}_min": float(ratios.min()),
            f"{name}_median": float(ratios.quantile(0.5)),
            f"{name}_below_one": float((ratios < 1).double().mean()),
        }
    return [Metric("signal_to_noise", name, value, seed) for name, value in values.items()]


def snr_notes(rows: list[SignalToNoise]) -> list[dict[str, Any]]:
    """The rows for a manifest; ∞ becomes null."""
    return [
        {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(row).items()
        }
        for row in rows
    ]
