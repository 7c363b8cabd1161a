"""Real minus synthetic in AUROC, paired by test image, over patients and classifier seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.evaluation import PairedDifference, holm_adjust, replicate_differences, replicate_intervals
from fedsynth.evaluation.macro_auroc import MACRO, auroc_replicates, macro_auroc
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.auroc_gap.spec import AUROCGapSettings
from fedsynth.stages.image_set_kinds import MULTICLASS

GAPS, SCORES = "gaps.json", "scores.safetensors"
DEFINITIONS = {
    "arm": "the synthetic set; the real one is the same for all",
    "gap": "AUROC of classifiers trained on real images minus that of classifiers trained on synthetic ones, both "
    "averaged over their seeds, in shares of 1 (0.01 is a point); macro: unweighted mean over classes",
    "interval": "2.5 and 97.5 % percentiles over replicates that draw test patients with replacement, the same ones "
    "for all classifiers, and the seeds of each set with replacement; few seeds vary less than many would. The "
    "synthetic set and its generator are held fixed",
    "p_value": "2 min(P(gap <= 0), P(gap >= 0)) over the replicates, at most 1; 0 means below 2 / num_bootstrap",
    "p_holm": "p_value of the macro gap after Holm's step-down adjustment over all synthetic sets",
}


def run(settings: AUROCGapSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``gap`` with its interval, ``gap/<class>``, ``gap_by_seed``, ``p_value`` and ``p_holm`` by arm; ``gaps.json``.

    Raises:
        ConfigError: Classifiers tested on other images.
        ArtifactError: Stored scores that do not fit their stage.
    """
    real = inputs["real"]
    artifacts = {artifact.manifest["settings"]["arm"]: artifact for artifact in inputs.values()}
    arm_of_real = real.manifest["settings"]["arm"]
    for artifact in inputs.values():
        _check_same_images(artifact, real)
    scores = {arm: _scores(artifact) for arm, artifact in artifacts.items()}
    classes, stored = real.manifest["notes"]["classes"], real.load(SCORES)
    target = _targets(stored["test.label"], real.manifest["notes"])
    replicates = auroc_replicates(
        scores, target, stored["test.patient"],
        generator=generator(settings.seed, "auroc_gap", "bootstrap"),
        num_replicates=settings.num_bootstrap, resample_seeds=True,
    )  # fmt: skip
    columns = {arm: dict(zip((*classes, MACRO), values.T, strict=True)) for arm, values in replicates.items()}
    found = {
        arm: replicate_differences(columns[arm_of_real], columns[arm])
        for arm in artifacts
        if arm != arm_of_real
    }
    tested = {arm: one[MACRO].p_value for arm, one in found.items() if math.isfinite(one[MACRO].p_value)}
    adjusted = holm_adjust(tested)  # fidelity: auroc-gap-interval
    by_seed = {arm: _by_seed(real, artifacts[arm], target) for arm in found}
    metrics = [
        row
        for arm, differences in found.items()
        for row in _metrics(arm, differences, by_seed[arm], adjusted.get(arm, math.nan), settings.seed)
    ]
    summary = {
        "real": arm_of_real,
        "auroc": {arm: vars(replicate_intervals(columns[arm])[MACRO]) for arm in artifacts},
        "gaps": {
            arm: {
                **vars(differences[MACRO]),
                "p_holm": adjusted.get(arm, math.nan),
                "by_class": {name: vars(differences[name]) for name in classes},
                "by_seed": {str(seed): value for seed, value in by_seed[arm].items()},
            }
            for arm, differences in found.items()
        },
        "definitions": DEFINITIONS,
    }
    (context.output / GAPS).write_text(json.dumps(_without_nan(summary), indent=1, allow_nan=False) + "\n")
    notes = {
        "real": arm_of_real,
        "arms": {arm: artifact.stage for arm, artifact in artifacts.items()},
        "num_test_images": len(target),
        "num_test_patients": len(stored["test.patient"].unique()),
        "num_undefined_replicates": {arm: one[MACRO].num_undefined for arm, one in found.items()},
        "definitions": DEFINITIONS,
    }
    return Outcome(metrics=metrics, notes=notes)


def _metrics(
    arm: str,
    differences: Mapping[str, PairedDifference],
    by_seed: Mapping[int, float],
    holm: float,
    seed: int,
) -> list[Metric]:
    metrics = []
    for name, one in differences.items():
        bounds = (one.low, one.high) if math.isfinite(one.low) else (None, None)
        metrics.append(Metric(arm, "gap" if name == MACRO else f"gap/{name}", one.estimate, seed, *bounds))
    metrics += [Metric(arm, "gap_by_seed", value, number) for number, value in by_seed.items()]
    metrics += [
        Metric(arm, "p_value", differences[MACRO].p_value, seed),
        Metric(arm, "p_holm", holm, seed),
    ]
    return metrics


def _by_seed(real: Artifact, synthetic: Artifact, target: Tensor) -> dict[int, float]:
    """The gap of each classifier seed that both have."""
    macro = [
        {
            int(seed): macro_auroc(score, target)
            for seed, score in zip(one.manifest["settings"]["seeds"], _scores(one), strict=True)
        }
        for one in (real, synthetic)
    ]
    return {seed: macro[0][seed] - macro[1][seed] for seed in macro[0] if seed in macro[1]}


def _scores(artifact: Artifact) -> Float[Tensor, "seed n k"]:
    name, stored = "test.probability_by_seed", artifact.load(SCORES)
    seeds = artifact.manifest["settings"]["seeds"]
    if name not in stored or len(stored[name]) != len(seeds):
        raise ArtifactError(
            f"stages.{artifact.stage} has no {name} of its {len(seeds)} seeds in {SCORES}. Compute that stage anew: "
            "force=[its name]."
        )
    return stored[name]


def _targets(label: Tensor, notes: Mapping[str, Any]) -> Float[Tensor, "n k"]:
    if notes["task"] == MULTICLASS:
        return torch.nn.functional.one_hot(label, len(notes["classes"])).double()
    return label.double()


def _check_same_images(one: Artifact, real: Artifact) -> None:
    mine, theirs = (artifact.manifest["notes"]["test_sha256"] for artifact in (one, real))
    if mine != theirs:
        raise ConfigError(
            f"stages.{one.stage} and stages.{real.stage} were not tested on the same images (SHA-256 {mine[:12]} and "
            f"{theirs[:12]}), so nothing about them is paired. Take both from one run, with the same inputs.images."
        )


def _without_nan(value: Any) -> Any:
    """JSON knows no NaN: null stands for a number that does not exist."""
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
