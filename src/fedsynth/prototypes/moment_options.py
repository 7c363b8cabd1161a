"""How a release of moments is made, and the budget that pays for it: all of it public, none of it needs a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fedsynth.privacy.budget import GaussianBudget
from fedsynth.privacy.composition import Composition, check_shares
from fedsynth.privacy.parameters import check_count
from fedsynth.privacy.quantile import RadiusGrid

#: What the budget is split among; see the table in :mod:`fedsynth.prototypes.moments`.
PARTS = ("radius", "subspace", "counts", "histogram", "means", "second_moments")


@dataclass(frozen=True)
class MomentOptions:
    """How the release of moments is made; all of it is public.

    Attributes:
        grid: Candidates of a radius.
        radius_quantile: Quantile of norms that a radius aims at, in (0, 1).
        radius_slack: Factor on that quantile.
        num_rounds: Rounds of the search for a subspace.
        max_rank: Most directions to keep.
        noise_edge: Multiple of the noise's largest eigenvalue above which a direction is kept.
        num_bins: Bins of the histogram.
        num_components: Most cells per class.
        min_cell_records: A class gets one cell for every so many (noisy) records, at least one.
        min_class_records: A client with a smaller noisy count of a class sits out for it.
        clip_factor: κ / √rank.
    """

    grid: RadiusGrid
    radius_quantile: float
    radius_slack: float
    num_rounds: int
    max_rank: int
    noise_edge: float
    num_bins: int
    num_components: int
    min_cell_records: int
    min_class_records: float
    clip_factor: float


def moment_budget(
    options: MomentOptions,
    *,
    epsilon: float,
    delta: float,
    shares: Mapping[str, float],
    composition: Composition,
    num_clients: int,
    seed_generator: Callable[[int], torch.Generator],
) -> GaussianBudget:
    """The budget of one release of moments. Needs no record, so that a split can be checked beforehand.

    Raises:
        PrivacyParameterError: If the shares are not those of :data:`PARTS`, or do not add up to 1.
        PrivacyError: If two clients would share their noise.
    """
    check_shares(shares, PARTS)
    rounds = check_count(options.num_rounds, "num_rounds")
    return GaussianBudget(
        epsilon=epsilon,
        delta=delta,
        shares=shares,
        num_releases={"radius": rounds * options.grid.num_steps, "subspace": rounds},
        composition=composition,
        num_clients=num_clients,
        seed_generator=seed_generator,
    )
