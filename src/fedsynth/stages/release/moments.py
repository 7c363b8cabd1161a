"""Moments of every client and component, everything paid for from one (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.privacy.budget import GaussianBudget
from fedsynth.privacy.composition import Composition
from fedsynth.privacy.quantile import RadiusGrid, require_payable_quantile
from fedsynth.prototypes import (
    MomentOptions,
    ReleasedMoments,
    moment_budget,
    moments_ledger_entry,
    release_moments,
)
from fedsynth.stages.release.spec import ReleaseSettings
from fedsynth.stages.release.streams import noise_streams

NUM_CLASSES = 2


def release_moments_of_clients(
    settings: ReleaseSettings, latents: Mapping[str, Tensor], context: StageContext
) -> Outcome:
    """Noisy moments and the ledger entry with all their parts. Validation latents are not used."""
    clients = latents["train.client"]
    budget = budget_of(settings, int(clients.max()) + 1, noise_streams(settings, context.key))
    # Sizes are public, so that a budget too small for its radius is refused before any latent is looked at.
    require_payable_quantile(
        budget,
        "radius",
        num_records=len(clients),
        quantile=settings.radius_quantile,
        where=f"stages.{context.name}",
    )
    released = release_moments(
        latents["train.latent"],
        latents["train.label"],
        clients,
        num_classes=NUM_CLASSES,
        options=options_of(settings),
        budget=budget,
    )
    context.save("release.safetensors", released.release.to_tensors(), may_be_infinite=("epsilon",))
    composition = Composition(settings.composition)
    entry = moments_ledger_entry(released, stage=context.name, composition=composition)
    arm = "dp" if settings.is_private else "nonprivate"
    metrics = [Metric(arm, name, value, settings.seed) for name, value in _numbers(released, budget).items()]
    return Outcome(metrics, [entry.to_record()], _notes(released, budget))


def options_of(settings: ReleaseSettings) -> MomentOptions:
    """The public choices of the release."""
    names = set(MomentOptions.__dataclass_fields__) - {"grid"}
    grid = RadiusGrid(settings.radius_low, settings.radius_high, settings.radius_steps)
    return MomentOptions(grid=grid, **{name: getattr(settings, name) for name in names})


def budget_of(
    settings: ReleaseSettings, num_clients: int, seed_generator: Callable[[int], torch.Generator]
) -> GaussianBudget:
    """The budget the settings ask for, not yet spent."""
    return moment_budget(
        options_of(settings),
        epsilon=settings.epsilon,
        delta=settings.delta,
        shares=settings.shares,
        composition=Composition(settings.composition),
        num_clients=num_clients,
        seed_generator=seed_generator,
    )


def _numbers(released: ReleasedMoments, budget: GaussianBudget) -> dict[str, float]:
    """Follow from what was released, so they add nothing to it."""
    release, frame = released.release, released.release.frame
    used = release.participates[:, frame.labels]  # [client, cell]
    pooled = (release.counts * used).sum(dim=0).clamp_min(1)
    noise = release.sum_std * used.sum(dim=0).double().sqrt() / pooled
    return {
        "clip_radius": frame.clip_radius,
        "last_radius": float(release.radii[-1]),
        "rank": float(frame.basis.shape[1]),
        "num_cells": float(len(frame.labels)),
        "residual_std": math.sqrt(release.residual_variance),
        "coordinate_radius": frame.coordinate_radius,
        # In scaled units, where a cell is about 1 wide.
        "mean_noise_std_max": float(noise.max()),
        "smallest_cell_count": float(pooled.min()),
        "left_out_client_classes": float((~release.participates).sum()),
        "spent_share": budget.spent_share,
    }


def _notes(released: ReleasedMoments, budget: GaussianBudget) -> dict[str, Any]:
    release = released.release
    return {
        "radii": release.radii.tolist(),
        "eigenvalues": release.eigenvalues.tolist(),
        "noisy_class_counts": release.class_counts.tolist(),
        "participates": release.participates.tolist(),
        "cells_per_class": release.frame.labels.bincount().tolist(),
        "parts": [part._asdict() for part in budget.parts],
    }
