"""Differences of all classification metrics between two systems, with intervals and Holm-adjusted p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedsynth.evaluation import holm_adjust, paired_bootstrap
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.contrast.spec import ContrastSettings
from fedsynth.stages.system_scores import read_systems, require_same_records

ARM = "contrast"
#: What each kind of number is; the metrics themselves are those of `evaluation.classification_metrics`.
DEFINITIONS = {
    "difference": "metric of the candidate minus metric of the baseline on the same test records, each at its own "
    "threshold, chosen on validation records and held fixed; 2.5 and 97.5 % percentiles over replicates that draw "
    "test records with replacement, the same ones for both systems",
    "p_value": "2 min(P(difference <= 0), P(difference >= 0)) over the replicates, at most 1; 0 means below 2 / "
    "num_bootstrap",
    "p_holm": "p_value after Holm's step-down adjustment over all defined metrics of this contrast",
}


def run(settings: ContrastSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``difference/<metric>`` with its interval, ``p_value/<metric>`` and ``p_holm/<metric>``.

    A metric without a value for one of the systems (see `evaluation.classification`) is NaN in all three and stays
    out of the family of the adjustment.

    Raises:
        ConfigError: An arm that the system does not have, or systems scored on different test records.
    """
    key = f"stages.{context.name}."
    # fidelity: contrast-classifier-seed
    candidate = read_systems(inputs["candidate"], settings.candidate_arm, f"{key}candidate_arm")[0]
    baseline = read_systems(inputs["baseline"], settings.baseline_arm, f"{key}baseline_arm")[0]
    require_same_records(candidate, baseline, "test")
    # fidelity: contrast-thresholds
    found = paired_bootstrap(
        candidate.probability("test"),
        baseline.probability("test"),
        candidate.label("test"),
        first_threshold=candidate.threshold,
        second_threshold=baseline.threshold,
        # One stream for all contrasts of a run: they see the same replicates.
        generator=generator(settings.seed, "contrast", "bootstrap"),
        num_replicates=settings.num_bootstrap,
        num_bins=settings.num_bins,
    )
    defined = {name: d for name, d in found.items() if math.isfinite(d.estimate) and math.isfinite(d.low)}
    adjusted = holm_adjust({name: d.p_value for name, d in defined.items()})
    metrics: list[Metric] = []
    for name in found:
        numbers = (math.nan, math.nan, math.nan)
        bounds: tuple[float | None, float | None] = (None, None)
        if name in defined:
            one = defined[name]
            numbers, bounds = (one.estimate, one.p_value, adjusted[name]), (one.low, one.high)
        metrics += [
            Metric(ARM, f"difference/{name}", numbers[0], settings.seed, *bounds),
            Metric(ARM, f"p_value/{name}", numbers[1], settings.seed),
            Metric(ARM, f"p_holm/{name}", numbers[2], settings.seed),
        ]
    notes = {
        "candidate": candidate.title,
        "baseline": baseline.title,
        "thresholds": {"candidate": candidate.threshold, "baseline": baseline.threshold},
        "num_test": len(candidate.label("test")),
        "num_undefined_replicates": {name: d.num_undefined for name, d in found.items() if d.num_undefined},
        "definitions": DEFINITIONS,
    }
    return Outcome(metrics=metrics, notes=notes)
