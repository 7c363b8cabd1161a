"""Latents with a known low-dimensional structure, and a release of their moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedsynth.privacy import Composition
from fedsynth.privacy.budget import GaussianBudget
from fedsynth.privacy.quantile import RadiusGrid
from fedsynth.prototypes import (
    PARTS,
    MomentOptions,
    ReleasedMoments,
    moment_budget,
    release_moments,
)
from fedsynth.seeding import generator

OPTIONS: dict[str, Any] = {
    "grid": RadiusGrid(0.01, 1000.0, 6), "radius_quantile": 0.8, "radius_slack": 1.2, "num_rounds": 3, "max_rank": 4,
    "noise_edge": 1.25, "num_bins": 32, "num_components": 2, "min_cell_records": 50, "min_class_records": 10,
    "clip_factor": 1.5,
}  # fmt: skip
SHARES = {
    "radius": 0.1, "subspace": 0.4, "counts": 0.05, "histogram": 0.05, "means": 0.15, "second_moments": 0.25,
}  # fmt: skip
assert tuple(SHARES) == PARTS


def streams(seed: int = 0) -> Callable[[int], torch.Generator]:
    return lambda client: generator(seed, "moments", client)


def options(**changes: Any) -> MomentOptions:
    return MomentOptions(**(OPTIONS | changes))


def budget(
    epsilon: float = math.inf,
    *,
    num_clients: int = 3,
    shares: Mapping[str, float] = SHARES,
    seed: int = 0,
    composition: Composition = Composition.GDP,
    **changes: Any,
) -> GaussianBudget:
    return moment_budget(
        options(**changes),
        epsilon=epsilon,
        delta=1e-5,
        shares=shares,
        composition=composition,
        num_clients=num_clients,
        seed_generator=streams(seed),
    )


def planted(
    size: int = 3000, dim: int = 10, num_clients: int = 3, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latents near two orthogonal directions (standard deviations 5 and 1), and those directions."""
    source = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(dim, 2, generator=source, dtype=torch.float64))[0]
    labels = torch.arange(size) % 2
    clients = torch.randint(num_clients, (size,), generator=source)
    first = torch.randn(size, generator=source, dtype=torch.float64) + torch.where(labels == 1, 6.0, -3.0)
    second = 0.5 * torch.randn(size, generator=source, dtype=torch.float64)
    noise = 0.02 * torch.randn(size, dim, generator=source, dtype=torch.float64)
    latents = torch.stack([first, second], dim=1) @ directions.T + noise
    return latents, labels, clients, directions


def released(
    latents: torch.Tensor,
    labels: torch.Tensor,
    clients: torch.Tensor,
    epsilon: float = math.inf,
    *,
    num_clients: int = 3,
    seed: int = 0,
    shares: Mapping[str, float] = SHARES,
    **changes: Any,
) -> ReleasedMoments:
    account = budget(epsilon, num_clients=num_clients, seed=seed, shares=shares, **changes)
    return release_moments(
        latents, labels, clients, num_classes=2, options=options(**changes), budget=account
    )
