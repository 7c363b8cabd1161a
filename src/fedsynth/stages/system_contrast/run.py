"""Candidate minus each baseline in every metric of ``privacy_performance``, with intervals and p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.evaluation import (
    EvaluationError,
    PairedDifference,
    ScoredSystem,
    holm_adjust,
    replicate_differences,
    system_replicates,
)
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.privacy_performance.scores import SCORES, scored_system
from fedsynth.stages.system_contrast.spec import SystemContrastSettings

#: Metrics of the family that Holm's adjustment covers, over all baselines.
HEADLINE = ("uar", "pps")
DEFINITIONS = {
    "arm": "the baseline; the candidate is the same for all",
    "difference": "metric of the candidate minus metric of the baseline; 2.5 and 97.5 % percentiles over replicates "
    "that draw training (client by client), validation and test participants with replacement, the same ones for all "
    "systems; the models are held fixed, so the chance of training is not covered",
    "p_value": "2 min(P(difference <= 0), P(difference >= 0)) over the replicates, at most 1; 0 means below 2 / "
    "num_bootstrap",
    "p_holm": "p_value of uar and pps after Holm's step-down adjustment over both metrics and all baselines; the other "
    "metrics are not adjusted",
}


def run(settings: SystemContrastSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``difference/<metric>`` with its interval and ``p_value/<metric>`` by baseline, ``p_holm`` of uar and pps.

    Participant-level metrics. A metric without a value for one of the systems is NaN and stays out of the adjustment.

    Raises:
        ConfigError: Systems of other participants.
        ArtifactError: Stored scores that do not fit together.
    """
    systems = {artifact.manifest["settings"]["arm"]: _system(artifact) for artifact in inputs.values()}
    candidate = inputs["candidate"].manifest["settings"]["arm"]
    stream = generator(settings.seed, "privacy_performance", "bootstrap")
    try:
        replicates = system_replicates(systems, generator=stream, num_replicates=settings.num_bootstrap)
    except EvaluationError as error:
        raise ConfigError(
            f"the systems of stages.{context.name} cannot be compared: {error} Take all from one run, with the same "
            "data settings."
        ) from error
    found = {
        arm: replicate_differences(replicates[candidate], replicates[arm])
        for arm in systems
        if arm != candidate
    }
    family = {
        (arm, name): found[arm][name].p_value
        for arm in found
        for name in HEADLINE
        if _is_defined(found[arm][name])
    }
    # fidelity: system-contrast-family
    adjusted = holm_adjust({f"{name} against {arm}": p for (arm, name), p in family.items()})
    metrics = []
    for arm, differences in found.items():
        for name, one in differences.items():
            bounds = (one.low, one.high) if _is_defined(one) else (None, None)
            value, p = (one.estimate, one.p_value) if _is_defined(one) else (math.nan, math.nan)
            metrics.append(Metric(arm, f"difference/{name}", value, settings.seed, *bounds))
            metrics.append(Metric(arm, f"p_value/{name}", p, settings.seed))
            if name in HEADLINE:
                holm = adjusted.get(f"{name} against {arm}", math.nan)
                metrics.append(Metric(arm, f"p_holm/{name}", holm, settings.seed))
    notes = {
        "candidate": candidate,
        "baselines": list(found),
        "num_undefined_replicates": {
            arm: {name: one.num_undefined for name, one in differences.items() if one.num_undefined}
            for arm, differences in found.items()
        },
        "definitions": DEFINITIONS,
    }
    return Outcome(metrics=metrics, notes=notes)


def _is_defined(one: PairedDifference) -> bool:
    return math.isfinite(one.estimate) and math.isfinite(one.low)


def _system(artifact: Artifact) -> ScoredSystem:
    """The participant-level scores of a stored system."""
    try:
        return scored_system(artifact.load(SCORES))
    except (EvaluationError, KeyError) as error:
        raise ArtifactError(
            f"{artifact.stage} has no usable {SCORES}: {error}. Compute that stage anew: force=[its name]."
        ) from error
