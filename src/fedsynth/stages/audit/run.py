"""Latent fidelity by class, nearest-neighbor disclosure, membership attack on released summaries, signal to noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedsynth.attacks import neighbor_disclosure
from fedsynth.errors import ConfigError
from fedsynth.evaluation import frechet_distance, latent_summary, prdc, rbf_mmd
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.stages.audit.membership import membership
from fedsynth.stages.audit.snr import signal_to_noise, snr_metrics, snr_notes
from fedsynth.stages.audit.spec import AuditSettings
from fedsynth.stages.release.audited import audited_release
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
    release = audited_release(inputs["release"])
    metrics += membership(real, release, settings, context)
    rows = signal_to_noise(
        release.published,
        real["train.latent"],
        real["train.label"],
        real["train.client"],
        release.clip_radius,
    )
    metrics += snr_metrics(rows, settings.seed)
    notes: dict[str, Any] = {"signal_to_noise": snr_notes(rows)}
    if undefined:
        notes["too_few_samples_for_nearest_k"] = undefined
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
