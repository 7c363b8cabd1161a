"""Fit one temperature on validation records; calibration of the test records before and after."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.evaluation import expected_calibration_error, fit_temperature, scale_logits
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.stages.system_scores import SystemScores, read_systems
from fedsynth.stages.temperature_scaling.spec import TemperatureScalingSettings

UNSCALED, SCALED = "unscaled", "scaled"
DEFINITIONS = {
    "temperature": "the T > 0 with the least mean negative log-likelihood of sigmoid(logit / T) on validation records",
    "brier": "mean (p1 - y)^2",
    "ece": "expected calibration error of p1, equal-width bins",
    "ece_10": "the same with 10 bins",
    "nll": "mean negative log-likelihood, nats",
}


def run(
    settings: TemperatureScalingSettings, inputs: Mapping[str, Artifact], context: StageContext
) -> Outcome:
    """Arms ``unscaled`` and ``scaled``, for every classifier seed of the system; test probabilities of both.

    Ranking metrics are left out: a temperature changes none of them, nor any decision at a threshold that is moved
    along with it.

    Raises:
        ConfigError: An arm that the system does not have.
        ArtifactError: A system whose scores hold no logits or no validation labels.
    """
    systems = read_systems(inputs["system"], settings.arm, f"stages.{context.name}.arm")
    metrics: list[Metric] = []
    probabilities: dict[str, list[Tensor]] = {UNSCALED: [], SCALED: []}
    without_optimum = []
    for system in systems:
        # Exact: the stored logits, not the probabilities, which may have saturated.
        temperature = fit_temperature(system.logit("val"), system.label("val")).temperature
        if not has_optimum(system.logit("val"), system.label("val")):
            without_optimum.append(system.title)
        for arm, divisor in ((UNSCALED, 1.0), (SCALED, temperature)):
            metrics += _calibration(arm, system, divisor, settings.num_bins)
            probabilities[arm].append(scaled_probability(system.logit("test"), divisor))
        metrics.append(Metric(SCALED, "temperature", temperature, system.seed))
    tensors = {f"{arm}/test.probability": torch.stack(rows) for arm, rows in probabilities.items()}
    context.save("scores.safetensors", {**tensors, "test.label": systems[0].label("test")})
    notes: dict[str, object] = {
        "systems": [system.title for system in systems],
        "definitions": {**DEFINITIONS, "ece": f"{DEFINITIONS['ece']}: {settings.num_bins}"},
    }
    if without_optimum:
        notes["no_optimal_temperature"] = without_optimum
    return Outcome(metrics=metrics, notes=notes)


def has_optimum(logit: Float[Tensor, " n"], label: Int[Tensor, " n"]) -> bool:
    """Whether the likelihood of sigmoid(logit / T) has its maximum at a finite T > 0.

    It is concave in 1 / T. When every record is on the right side it grows without end as T -> 0; when the logits do
    not even lean to the right side, sum (y - 1/2) logit <= 0, it is largest as T -> infinity. The fitted T is then an
    artifact of the range that is searched, and is marked in the notes.
    """
    is_separated = bool(((logit > 0) == (label == 1)).all() and (logit != 0).all())
    return not is_separated and float(((label - 0.5) * logit).sum()) > 0


def scaled_probability(logit: Float[Tensor, " n"], temperature: float) -> Float[Tensor, " n"]:
    """p1 = sigmoid(logit / T)."""
    return scale_logits(logit, temperature)[:, 1]


def calibration_numbers(
    logit: Float[Tensor, " n"], label: Int[Tensor, " n"], temperature: float, num_bins: int
) -> dict[str, float]:
    """Brier score, ECE with ``num_bins`` and with 10 bins, and negative log-likelihood of sigmoid(logit / T).

    The likelihood comes from the logits and is not bounded; elsewhere it is taken from probabilities, which are kept
    off 0 and 1. The two differ only where a probability has saturated.
    """
    probability = scaled_probability(logit, temperature)
    nll = torch.nn.functional.binary_cross_entropy_with_logits(logit / temperature, label.to(logit.dtype))
    return {
        "brier": float((probability - label).square().mean()),
        "ece": expected_calibration_error(probability, label, num_bins),
        "ece_10": expected_calibration_error(probability, label, 10),
        "nll": float(nll),
    }


def _calibration(arm: str, system: SystemScores, temperature: float, num_bins: int) -> list[Metric]:
    metrics = []
    for split in ("val", "test"):
        numbers = calibration_numbers(system.logit(split), system.label(split), temperature, num_bins)
        metrics += [Metric(arm, f"{split}/{name}", value, system.seed) for name, value in numbers.items()]
    return metrics
