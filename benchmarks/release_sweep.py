"""How well a release covers held-out latents: variants, shards, components, rank and shares, over several encoders.

    python benchmarks/release_sweep.py LATENTS... [--split val] [--draws 2] [--only moments components]

LATENTS are `latents.safetensors` of stage `encode`, one per seed. Numbers are precision, recall, density and coverage
(k = 5) of samples of the mixture against the latents of the split, negative / positive class, mean over seeds and draws.
Choices are made on validation latents; the test split is for the table that is printed afterwards.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedsynth.errors import FedSynthError
from fedsynth.evaluation import prdc
from fedsynth.privacy import Composition
from fedsynth.privacy.clipping import clip_radius_from_norms
from fedsynth.privacy.quantile import RadiusGrid
from fedsynth.prototypes import (
    MomentOptions,
    mixture_from_moments,
    mixture_from_release,
    moment_budget,
    release_moments,
    release_prototypes,
    sample_mixture,
)
from fedsynth.records import Mixture
from fedsynth.seeding import derive_seed, generator

Latents = Mapping[str, Tensor]
DELTA = 1e-5


@dataclass(frozen=True)
class Means:
    """The paper's release of shard means, with or without the noise subtracted."""

    epsilon: float = 4.0
    num_shards: int = 4
    min_shard_size: int = 5
    clip_percentile: float = 95.0
    subtract_noise: bool = False

    def mixture(self, latents: Latents, draw: int) -> Mixture:
        release = release_prototypes(
            latents["train.latent"],
            latents["train.label"],
            latents["train.client"],
            latents["train.record_id"],
            num_clients=int(latents["train.client"].max()) + 1,
            num_classes=2,
            num_shards=self.num_shards,
            clip_radius=clip_radius_from_norms(
                latents["val.latent"].double().norm(dim=1), self.clip_percentile
            ),
            epsilon=self.epsilon,
            delta=DELTA,
            min_shard_size=self.min_shard_size,
            seed_generator=lambda client: generator(draw, "sweep", str(self), client),
        )
        return mixture_from_release(release, subtract_noise=self.subtract_noise)


SHARES = {
    "radius": 0.03,
    "subspace": 0.6,
    "counts": 0.03,
    "histogram": 0.04,
    "means": 0.1,
    "second_moments": 0.2,
}
OPTIONS = MomentOptions(
    grid=RadiusGrid(0.01, 1000.0, 7),
    radius_quantile=0.75,
    radius_slack=1.1,
    num_rounds=4,
    max_rank=12,
    noise_edge=1.2,
    num_bins=64,
    num_components=1,
    min_cell_records=120,
    min_class_records=25,
    clip_factor=1.0,
)


@dataclass(frozen=True)
class Moments:
    """The release that pays for everything."""

    epsilon: float = 4.0
    options: MomentOptions = OPTIONS
    shares: tuple[tuple[str, float], ...] = tuple(SHARES.items())
    composition: Composition = Composition.GDP

    def mixture(self, latents: Latents, draw: int) -> Mixture:
        budget = moment_budget(
            self.options,
            epsilon=self.epsilon,
            delta=DELTA,
            shares=dict(self.shares),
            composition=self.composition,
            num_clients=int(latents["train.client"].max()) + 1,
            seed_generator=lambda client: generator(draw, "sweep", str(self), client),
        )
        released = release_moments(
            latents["train.latent"],
            latents["train.label"],
            latents["train.client"],
            num_classes=2,
            options=self.options,
            budget=budget,
        )
        return mixture_from_moments(released.release)


def with_shares(**changes: float) -> tuple[tuple[str, float], ...]:
    """The default split with some shares changed, divided by the new sum."""
    shares = SHARES | changes
    return tuple((name, share / sum(shares.values())) for name, share in shares.items())


def rows(only: list[str]) -> Iterator[tuple[str, str, Means | Moments]]:
    """(group, what is changed, release)."""
    plans: dict[str, Callable[[], list[tuple[str, Means | Moments]]]] = {
        "paper": lambda: [(f"ε = {e:g}", Means(epsilon=e)) for e in (math.inf, 8, 4, 2, 1)],
        "noise_corrected": lambda: [
            (f"ε = {e:g}", Means(epsilon=e, subtract_noise=True)) for e in (8, 4, 2, 1)
        ],
        "shards": lambda: [
            (f"{n} shards, ≥ {m} records, C = {c:g} %, subtract {s}", Means(4.0, n, m, c, s))
            for c in (95.0, 100.0)
            for n, m in ((1, 5), (2, 5), (4, 5), (4, 25), (8, 25), (16, 25))
            for s in (False, True)
        ],
        "moments": lambda: [(f"ε = {e:g}", Moments(epsilon=e)) for e in (math.inf, 8, 4, 2, 1, 0.5)],
        "components": lambda: [
            (f"{n} components", Moments(options=replace(OPTIONS, num_components=n))) for n in (1, 2, 4, 8)
        ],
        "rank": lambda: [
            (f"rank ≤ {n}", Moments(options=replace(OPTIONS, max_rank=n))) for n in (2, 4, 8, 12, 16)
        ],
        "rounds": lambda: [
            (f"{n} rounds", Moments(options=replace(OPTIONS, num_rounds=n))) for n in (1, 2, 3, 4, 5)
        ],
        "clip_factor": lambda: [
            (f"κ = {f:g} √rank", Moments(options=replace(OPTIONS, clip_factor=f)))
            for f in (0.7, 0.85, 1.0, 1.2, 1.5)
        ],
        "radius": lambda: [
            (f"q = {q:g}, slack {s:g}", Moments(options=replace(OPTIONS, radius_quantile=q, radius_slack=s)))
            for q, s in ((0.7, 1.1), (0.75, 1.1), (0.8, 1.1), (0.75, 1.25), (0.9, 1.1))
        ],
        "edge": lambda: [
            (f"edge {e:g}", Moments(options=replace(OPTIONS, noise_edge=e))) for e in (1.0, 1.2, 1.5, 2.0)
        ],
        "cells": lambda: [
            (f"≥ {n} records a cell", Moments(options=replace(OPTIONS, min_cell_records=n)))
            for n in (60, 120, 200)
        ],
        "shares": lambda: [
            (f"{name} × {f:g}", Moments(shares=with_shares(**{name: SHARES[name] * f})))
            for name in SHARES
            for f in (0.5, 2.0)
        ],
        "composition": lambda: [(c.value, Moments(composition=c)) for c in Composition],
    }
    for group in only or plans:
        for name, release in plans[group]():
            yield group, name, release


def measure(release: Means | Moments, latents: Latents, split: str, draw: int, num_samples: int) -> Any:
    """[class, metric] of precision, recall, density and coverage."""
    mixture = release.mixture(latents, draw)
    synthetic, label = sample_mixture(mixture, num_samples, generator(draw, "sweep samples"))
    real, real_label = latents[f"{split}.latent"].double(), latents[f"{split}.label"]
    return torch.tensor(
        [list(prdc(real=real[real_label == c], synthetic=synthetic[label == c], nearest_k=5)) for c in (0, 1)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("latents", nargs="+", type=Path)
    parser.add_argument("--split", choices=("val", "test"), default="val")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    encoders = [load_file(path) for path in arguments.latents]
    print(
        "| group | change | precision | recall | density | coverage | seconds |\n|---|---|---|---|---|---|---|"
    )
    for group, name, release in rows(arguments.only):
        start, found, refused = time.perf_counter(), [], ""
        for index, latents in enumerate(encoders):
            for repetition in range(arguments.draws):
                draw = derive_seed(repetition, "encoder", index)  # no two encoders share noise
                try:
                    found.append(measure(release, latents, arguments.split, draw, arguments.samples))
                except FedSynthError as error:
                    refused = str(error).split(":")[0][:60]
        seconds = (time.perf_counter() - start) / (len(encoders) * arguments.draws)
        cells = "refused | | | " if not found else ""
        if found:
            negative, positive = torch.stack(found).mean(dim=0)
            cells = " | ".join(
                f"{a:.2f} / {b:.2f}" for a, b in zip(negative.tolist(), positive.tolist(), strict=True)
            )
        print(f"| {group} | {name} {refused} | {cells} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
