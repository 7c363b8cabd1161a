"""DP-PMA on every client: clip, fixed shards, noise from the client's own stream (Eqs. 18–21)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from torch import Tensor

from fedsynth.errors import ConfigError
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.privacy.clipping import clip_radius_from_norms
from fedsynth.prototypes import release_ledger_entry, release_prototypes
from fedsynth.stages.release.spec import ReleaseSettings
from fedsynth.stages.release.streams import noise_streams

log = logging.getLogger(__name__)


def release_means(settings: ReleaseSettings, latents: Mapping[str, Tensor], context: StageContext) -> Outcome:
    """The noisy shard means and the ledger entry that pays for them."""
    largest = int(latents["train.client"].bincount().max())
    if settings.num_shards > largest:
        raise ConfigError(
            f"stages.{context.name}.num_shards must be ≤ {largest}, the records of the largest client, "
            f"got {settings.num_shards}. The paper uses 4.",
            key=f"stages.{context.name}.num_shards",
        )
    radius = settings.clip_radius or clip_radius_from_norms(
        latents["val.latent"].double().norm(dim=1), settings.clip_percentile
    )
    release = release_prototypes(
        latents["train.latent"],
        latents["train.label"],
        latents["train.client"],
        latents["train.record_id"],
        num_clients=int(latents["train.client"].max()) + 1,
        num_classes=2,
        num_shards=settings.num_shards,
        clip_radius=radius,
        epsilon=settings.epsilon,
        delta=settings.delta,
        min_shard_size=settings.min_shard_size,
        seed_generator=noise_streams(settings, context.key),
    )
    context.save("release.safetensors", release.to_tensors(), may_be_infinite=("epsilon",))
    occupied = release.counts > 0
    clipped = (latents["train.latent"].double().norm(dim=1) > radius).double().mean()
    if clipped > 0.5:
        log.warning(
            "stages.%s clips %.0f %% of the training latents to the radius %.4g: their class structure is lost. "
            "Raise clip_radius or clip_percentile.",
            context.name, 100 * float(clipped), radius,
        )  # fmt: skip
    arm = "dp" if math.isfinite(settings.epsilon) else "nonprivate"
    values = {
        "clip_radius": radius,
        "clipped_fraction": float(clipped),
        "noise_std_min": float(release.noise_std[occupied].min()),
        "noise_std_max": float(release.noise_std[occupied].max()),
        # σ / Δ, the same for every shard; 0 without noise. Δ = 2C / n, so this is not a multiple of C / n.
        "noise_std_over_sensitivity": float(
            (release.noise_std[occupied] * release.counts[occupied] / (2 * radius)).max()
        ),
        "shard_size_min": float(release.counts[occupied].min()),
        "empty_shards": float((~occupied).sum()),
    }
    entry = release_ledger_entry(release, stage=context.name)
    metrics = [Metric(arm, name, value, settings.seed) for name, value in values.items()]
    return Outcome(
        metrics,
        [entry.to_record()],
        {"noise_std": release.noise_std.tolist(), "counts": release.counts.tolist()},
    )
