"""Latent fidelity by class, nearest-neighbor disclosure, and the membership attack on released summaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedsynth.attacks import (
    Release,
    ReleasedMeans,
    SummaryAttack,
    neighbor_disclosure,
    paired_change,
    public_reference,
    released_summary_attack,
    shifted_summary_attack,
    spread,
)
from fedsynth.errors import ConfigError
from fedsynth.evaluation import frechet_distance, latent_summary, prdc, rbf_mmd
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.prototypes import release_prototypes
from fedsynth.records import ShardRelease
from fedsynth.seeding import generator
from fedsynth.stages.audit.spec import AuditSettings
from fedsynth.stages.tstr_mlp.run import training_latents

Latents = Mapping[str, Tensor]
CLASSES = ("negative", "positive")


def run(settings: AuditSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Every number of the audit, and the distances behind the disclosure plot."""
    real = inputs["latents"].load("latents.safetensors")
    _check_nearest_k(real, settings, context)
    metrics: list[Metric] = []
    undefined: list[str] = []
    for source in ("mixture", "synthetic"):
        latent, label = training_latents(inputs[source], settings.samples_per_class)
        prefix = "" if source == "synthetic" else "mixture_"
        metrics += fidelity(real, latent, label, prefix, settings)
        sizes = label.bincount(minlength=len(CLASSES)).tolist()
        undefined += [
            prefix + name for name, size in zip(CLASSES, sizes, strict=True) if size <= settings.nearest_k
        ]
    # The limit: how well the real training latents themselves cover the real test latents.
    metrics += fidelity(real, real["train.latent"], real["train.label"], "real_train_", settings)
    latent, _ = training_latents(inputs["synthetic"], settings.samples_per_class)
    metrics += disclosure(real, latent, settings, context)
    release = ShardRelease.from_tensors(inputs["release"].load("release.safetensors"))
    smallest = int(inputs["release"].manifest["settings"]["min_shard_size"])
    metrics += membership(real, release, smallest, settings)
    notes = {"too_few_samples_for_nearest_k": undefined} if undefined else {}
    return Outcome(metrics=metrics, notes=notes)


def _check_nearest_k(real: Latents, settings: AuditSettings, context: StageContext) -> None:
    """The real records decide what k is possible; too few samples of a generator are a result of its own."""
    size, split, name = min(
        (int((real[f"{split}.label"] == value).sum()), split, name)
        for split in ("train", "test")
        for value, name in enumerate(CLASSES)
    )
    if settings.nearest_k >= size:
        raise ConfigError(
            f"stages.{context.name}.nearest_k must be below {size}, the size of the smallest class "
            f"({name}, {split} records), got {settings.nearest_k}. Set evaluation.nearest_k; the usual value is 5.",
            key=f"stages.{context.name}.nearest_k",
        )


def fidelity(
    real: Latents, latent: Tensor, label: Tensor, prefix: str, settings: AuditSettings
) -> list[Metric]:
    """Class-conditional Fréchet distance, MMD, PRDC and latent norms against the real test latents."""
    metrics = []
    for value, name in enumerate(CLASSES):
        test, synthetic = real["test.latent"][real["test.label"] == value], latent[label == value]
        if len(synthetic) > settings.nearest_k:
            neighbors = prdc(real=test, synthetic=synthetic, nearest_k=settings.nearest_k)._asdict()
        else:
            # Fewer samples than k + 1 of this class: undefined, and reported as such.
            neighbors = dict.fromkeys(("precision", "recall", "density", "coverage"), math.nan)
        summary = latent_summary(real=test, synthetic=synthetic)
        numbers = {
            **neighbors,
            "frechet_distance": frechet_distance(real=test, synthetic=synthetic),
            "rbf_mmd": rbf_mmd(real=test, synthetic=synthetic),
            "mean_gap": summary.mean_gap,
            "real_mean_norm": summary.real_mean_norm,
            "synthetic_mean_norm": summary.synthetic_mean_norm,
        }
        metrics += [
            Metric(prefix + name, key, float(number), settings.seed) for key, number in numbers.items()
        ]
    return metrics


def disclosure(real: Latents, latent: Tensor, settings: AuditSettings, context: StageContext) -> list[Metric]:
    """Distances from synthetic latents to training and to held-out records."""
    found = neighbor_disclosure(synthetic=latent, train=real["train.latent"], held_out=real["test.latent"])
    context.save(
        "distances.safetensors",
        {"train": found.train_distance, "held_out": found.held_out_distance},
    )
    numbers = {
        "nn_median_train": found.median_train,
        "nn_median_held_out": found.median_held_out,
        "nn_mean_train": found.mean_train,
        "nn_mean_held_out": found.mean_held_out,
        "nn_ratio": found.ratio,
        "near_duplicate_cut": found.near_duplicate_cut,
        "near_duplicate_fraction": found.near_duplicate_fraction,
    }
    return [Metric("disclosure", key, value, settings.seed) for key, value in numbers.items()]


def membership(
    real: Latents, release: ShardRelease, min_shard_size: int, settings: AuditSettings
) -> list[Metric]:
    """The released-summary attack at the release's own budget and without noise, on the same candidates."""
    arms = {
        "nonprivate": _release(release, math.inf, min_shard_size),
        "private": _release(release, release.epsilon, min_shard_size),
    }
    common = {
        "latents": real["train.latent"],
        "labels": real["train.label"],
        "clients": real["train.client"],
        "reference": public_reference(real["val.latent"], real["val.label"], num_classes=2),
        "releases": arms,
        "clip_radius": release.clip_radius,
        "num_repetitions": settings.num_attack_repetitions,
    }
    fair = released_summary_attack(**common, generator=generator(settings.seed, "audit", "fair"))  # type: ignore[arg-type]
    shifted = shifted_summary_attack(
        **common,  # type: ignore[arg-type]
        held_out_latents=real["test.latent"],
        held_out_labels=real["test.label"],
        generator=generator(settings.seed, "audit", "shifted"),
    )
    metrics = []
    for arm in arms:
        metrics += _attack_metrics(f"membership_{arm}", fair[arm], settings.seed)
        metrics += _attack_metrics(f"membership_{arm}_test_shift", shifted[arm], settings.seed)
    paired = paired_change(fair["private"], fair["nonprivate"])
    change, share = paired.change, paired.num_reduced / paired.num_repetitions
    arm, seed = "membership_private", settings.seed
    metrics.append(Metric(arm, "attack_auroc_change", change.mean, seed, change.low, change.high))
    metrics.append(Metric(arm, "share_of_repetitions_reduced", share, seed))
    return metrics


def _attack_metrics(arm: str, attack: SummaryAttack, seed: int) -> list[Metric]:
    """Mean over repetitions with the 2.5 and 97.5 % quantiles, per score; the matched filter has the plain name."""
    metrics = []
    for score, auroc in attack.auroc.items():
        found, gap = spread(auroc), spread(attack.score_gap[score])
        metrics.append(Metric(arm, f"{score}/attack_auroc", found.mean, seed, found.low, found.high))
        metrics.append(Metric(arm, f"{score}/attack_auroc_std", found.std, seed))
        metrics.append(Metric(arm, f"{score}/score_gap", gap.mean, seed, gap.low, gap.high))
    # fidelity: summary-attack-score. The paper's attack is linear in the released mean: the matched filter.
    matched = spread(attack.auroc["matched_filter"])
    metrics.append(Metric(arm, "attack_auroc", matched.mean, seed, matched.low, matched.high))
    metrics.append(Metric(arm, "attack_auroc_std", matched.std, seed))
    strongest = max((spread(auroc) for auroc in attack.auroc.values()), key=lambda found: found.mean)
    metrics.append(Metric(arm, "strongest_attack_auroc", strongest.mean, seed, strongest.low, strongest.high))
    return metrics


def _release(release: ShardRelease, epsilon: float, min_shard_size: int) -> Release:
    """The clients' own release as a function of the records, for the attack to call."""
    num_clients, num_classes, num_shards, _ = release.means.shape

    def releasing(latents: Tensor, labels: Tensor, clients: Tensor, stream: torch.Generator) -> ReleasedMeans:
        made = release_prototypes(
            latents,
            labels,
            clients,
            torch.arange(len(labels)),
            num_clients=num_clients,
            num_classes=num_classes,
            num_shards=num_shards,
            clip_radius=release.clip_radius,
            epsilon=epsilon,
            delta=release.delta,
            min_shard_size=min_shard_size,
            seed_generator=_streams(stream),
        )
        return flatten_release(made)

    return releasing


def _streams(stream: torch.Generator) -> Callable[[int], torch.Generator]:
    root = int(torch.randint(2**62, (), generator=stream))
    return lambda client: generator(root, "attacked-release", client)


def flatten_release(release: ShardRelease) -> ReleasedMeans:
    """One row per occupied shard, as an attacker sees a release."""
    occupied = release.counts > 0
    client, label, _ = occupied.nonzero(as_tuple=True)
    return ReleasedMeans(
        release.means[occupied], release.noise_std[occupied], release.counts[occupied], label, client
    )
