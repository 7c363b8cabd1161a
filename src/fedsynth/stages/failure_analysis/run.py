"""Compare the classifier of synthetic latents with that of real ones, record by record, for every seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.evaluation.failure import (
    ScoreComparison,
    borderline_negatives,
    centroid_margin,
    compare_scores,
    correlation,
    frequent_values,
    hard_negatives,
    logit_moments,
    neighbor_positive_share,
    score_range,
)
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.stages.failure_analysis.spec import FailureAnalysisSettings
from fedsynth.stages.system_scores import SystemScores, read_systems, require_same_records

#: What the numbers of each arm are.
DEFINITIONS = {
    "positives_real, positives_synthetic": "scores of real test positives: score_range = P90 - P10 of p1; mean and SD "
    "(ddof = 1) of the logits; most frequent p1 after rounding, and how many records have it",
    "hard_negatives": "real test negatives with the largest p_synthetic - p_real",
    "borderline_negatives": "real test negatives whose share of positives among the nearest real training latents "
    "lies between the bounds",
    "correlation, correlation_negatives": "Pearson's r, over all test records or the negatives, of the synthetic "
    "classifier's p1 with the centroid margin ||h - mu_pos|| - ||h - mu_neg|| and with that share of positives",
}


def run(settings: FailureAnalysisSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Every number for every classifier seed, and what a plot needs of every test record.

    Raises:
        ConfigError: Classifiers of different seeds or test records, or more neighbors than training records.
        DataError: Training records of one class only.
    """
    latents = inputs["latents"].load("latents.safetensors")
    real = read_systems(inputs["real"], None, f"stages.{context.name}.inputs.real")
    synthetic = read_systems(inputs["synthetic"], None, f"stages.{context.name}.inputs.synthetic")
    _check_inputs(latents, real, synthetic, settings, context)
    label = latents["test.label"]
    known = {"reference": latents["train.latent"], "label": latents["train.label"]}
    margin = centroid_margin(latents["test.latent"], **known)
    share = neighbor_positive_share(latents["test.latent"], **known, num_neighbors=settings.num_neighbors)
    metrics: list[Metric] = []
    notes: dict[str, Any] = {"frequent_values": {}, "definitions": DEFINITIONS}
    hard = []
    for one, other in zip(synthetic, real, strict=True):
        for source, system in (("real", other), ("synthetic", one)):
            found, rounded = positive_scores(system, label, settings)
            metrics += _metrics(f"positives_{source}", found, system.seed)
            notes["frequent_values"].setdefault(source, {})[str(system.seed)] = rounded
        p, q = one.probability("test"), other.probability("test")
        hard.append(hard_negatives(p, q, label, fraction=settings.hard_negative_fraction))
        borderline = borderline_negatives(
            share, label, low=settings.borderline_low, high=settings.borderline_high
        )
        metrics += _metrics("hard_negatives", _comparison(compare_scores(p, q, hard[-1])), one.seed)
        metrics += _metrics("borderline_negatives", _comparison(compare_scores(p, q, borderline)), one.seed)
        metrics += relations(p, label, margin, share, one.seed)
    context.save(
        "failure.safetensors",
        {
            "test.label": label,
            "centroid_margin": margin,
            "positive_share": share,
            "synthetic.probability": torch.stack([system.probability("test") for system in synthetic]),
            "real.probability": torch.stack([system.probability("test") for system in real]),
            "hard_negatives": torch.stack(hard),
        },
    )
    return Outcome(metrics=metrics, notes=notes)


def positive_scores(
    system: SystemScores, label: Tensor, settings: FailureAnalysisSettings
) -> tuple[dict[str, float], list[list[float]]]:
    """How far one classifier spreads its scores of the positives, and the most frequent of them."""
    positives = label == 1
    probability, logit = system.probability("test")[positives], system.logit("test")[positives]
    moments = logit_moments(logit)
    frequent = frequent_values(probability, num_decimals=settings.num_decimals)
    numbers = {
        "score_range": score_range(probability),
        "logit_mean": moments.mean,
        "logit_std": moments.std,
    }
    if frequent:
        numbers |= {"top_value": frequent[0].value, "top_value_count": float(frequent[0].num_records)}
    return numbers, [[value, count] for value, count in frequent]


def relations(p: Tensor, label: Tensor, margin: Tensor, share: Tensor, seed: int) -> list[Metric]:
    """Correlations of the synthetic classifier's scores with the geometry of the real latents."""
    # fidelity: failure-correlations
    everyone = torch.ones_like(label, dtype=torch.bool)
    metrics = []
    for arm, rows in (("correlation", everyone), ("correlation_negatives", label == 0)):
        numbers = {
            "centroid_margin": correlation(p[rows], margin[rows]),
            "positive_share": correlation(p[rows], share[rows]),
        }
        metrics += _metrics(arm, numbers, seed)
    return metrics


def _comparison(found: ScoreComparison) -> dict[str, float]:
    return {
        "count": float(found.num_records),
        "mean_synthetic_score": found.mean_synthetic,
        "mean_real_score": found.mean_real,
        "gap": found.gap,
    }


def _metrics(arm: str, numbers: Mapping[str, float], seed: int) -> list[Metric]:
    return [Metric(arm, name, value, seed) for name, value in numbers.items()]


def _check_inputs(
    latents: Mapping[str, Tensor],
    real: list[SystemScores],
    synthetic: list[SystemScores],
    settings: FailureAnalysisSettings,
    context: StageContext,
) -> None:
    key = f"stages.{context.name}"
    seeds = {"real": [one.seed for one in real], "synthetic": [one.seed for one in synthetic]}
    if seeds["real"] != seeds["synthetic"]:
        raise ConfigError(
            f"{key}.inputs.real and .synthetic must be classifiers of the same seeds, got {seeds['real']} and "
            f"{seeds['synthetic']}. Set evaluation.classifier_seeds for both.",
            key=f"{key}.inputs.real",
        )
    require_same_records(synthetic[0], real[0], "test")
    if not torch.equal(latents["test.label"], real[0].label("test")):
        raise ConfigError(
            f"{key}.inputs.latents holds other test records than those {real[0].title} was scored on. Take both from "
            "one run.",
            key=f"{key}.inputs.latents",
        )
    label = latents["train.label"]
    if not 0 < int(label.sum()) < len(label):
        raise DataError("the real training latents hold one class only: a centroid margin needs both.")
    if settings.num_neighbors > len(label):
        raise ConfigError(
            f"{key}.num_neighbors must be at most {len(label)}, the number of real training latents, got "
            f"{settings.num_neighbors}. The usual value is 25.",
            key=f"{key}.num_neighbors",
        )
