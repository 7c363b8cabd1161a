"""DP-PMA on every client: clip, fixed shards, noise from the client's own stream (Eqs. 18–21)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.privacy.clipping import clip_radius_from_norms
from fedsynth.prototypes import release_ledger_entry, release_prototypes
from fedsynth.seeding import generator
from fedsynth.stages.release.spec import ReleaseSettings


def run(settings: ReleaseSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """The noisy shard means and the ledger entry that pays for them."""
    latents = inputs["latents"].load("latents.safetensors")
    radius = settings.clip_radius or clip_radius_from_norms(
        latents["val.latent"].double().norm(dim=1), settings.clip_percentile
    )
    budget = (repr(settings.epsilon), repr(settings.delta), repr(radius))
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
        # The budget names the stream too: two releases of the same latents at different budgets that shared
        # their noise would let anyone who holds both subtract it.
        seed_generator=lambda client: generator(settings.seed, "release", client, *budget),
    )
    context.save("release.safetensors", release.to_tensors())
    occupied = release.counts > 0
    clipped = (latents["train.latent"].double().norm(dim=1) > radius).double().mean()
    arm = "dp" if math.isfinite(settings.epsilon) else "nonprivate"
    values = {
        "clip_radius": radius,
        "clipped_fraction": float(clipped),
        "noise_std_min": float(release.noise_std[occupied].min()),
        "noise_std_max": float(release.noise_std[occupied].max()),
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
