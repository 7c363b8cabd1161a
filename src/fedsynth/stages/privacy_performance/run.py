"""Utility and privacy of one trained classifier on its participants, with intervals (FedMPA, PPS)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.evaluation import EvaluationError, replicate_intervals, system_replicates
from fedsynth.evaluation.bootstrap import BootstrapInterval
from fedsynth.evaluation.privacy_performance import DECISION_METRICS
from fedsynth.evaluation.scored_system import SPLITS
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.seeding import generator
from fedsynth.stages.multimodal.trained import SplitOutputs, TrainedClassifier, open_classifier
from fedsynth.stages.privacy_performance.decisions import AnsweredSplit
from fedsynth.stages.privacy_performance.scores import SCORES, score_tensors, scored_system
from fedsynth.stages.privacy_performance.spec import PrivacyPerformanceSettings

TEST_METRICS = (*DECISION_METRICS, "rerouted_share")
DEFINITIONS = {
    "unit": "participants, where several records (segments) belong to one: class probabilities and distances to "
    "prototypes are averaged over the records of a participant. Names with segment/ count every record by itself; "
    "their intervals still draw participants",
    "decision": "softmax: the class with the largest probability. hybrid: that class if its probability reaches "
    "confidence_threshold, else the class whose prototypes are nearest. prototype: the nearest prototypes always. No "
    "threshold is chosen on data",
    "uar": "unweighted average recall, the mean of sensitivity and specificity (balanced accuracy)",
    "rerouted_share": "share of test participants that the prototypes decided on",
    "attack_auroc": "how well the largest softmax probability tells training (members) from test participants "
    "(non-members); 0.5 is chance. Whatever else tells training from test records counts as membership: see "
    "attack_auroc_val",
    "attack_auroc_true_class": "the same with the probability of the true class",
    "attack_auroc_val": "attack_auroc with validation participants as non-members; they may have chosen the round "
    "whose weights are attacked",
    "privacy_score": "1 - 2 |attack_auroc - 0.5|. It treats an AUROC of .42 as leaking as much as one of .58. Near .5 "
    "most of its interval lies below the estimate, since deviations either way lower it",
    "pps": "2 uar privacy_score / (uar + privacy_score)",
    "personal models": "with num_models > 1 every rate and AUROC is the mean over the clients' models, each tested on "
    "all test participants; members of a model are the training participants of its client. privacy_score and pps "
    "are computed from these means",
    "interval": "2.5 and 97.5 % percentiles over replicates that draw training (client by client), validation and test "
    "participants with replacement, the same draws for all metrics; the models are held fixed",
    "rounds_to_uar": "first round (epoch, where records are pooled) whose UAR on validation records, as monitored "
    "in training (by the largest probability of single records, whatever decides on the test), reaches target_uar; "
    "left out if none does",
    "bytes_up_per_round, bytes_down_per_round": "what one client sends and receives, mean over rounds, uncompressed",
}


def run(
    settings: PrivacyPerformanceSettings, inputs: Mapping[str, Artifact], context: StageContext
) -> Outcome:
    """Metrics of arm ``settings.arm``; writes ``scores.safetensors`` (see `scores`).

    Raises:
        ConfigError: Inference by prototypes of a classifier without any, or in modalities it does not have.
        ArtifactError: Outputs that are not of two classes, participants with several labels, a history without UAR.
    """
    classifier = open_classifier(inputs["encoder"], inputs["clients"])
    bank = _bank(classifier, settings, context.name)
    outputs: dict[str, SplitOutputs] = {split: classifier.outputs(split) for split in SPLITS}
    _check_outputs(outputs, bank, settings, context.name, inputs["encoder"].stage)
    answers = {
        split: AnsweredSplit.of(one, bank, settings.margin_modalities) for split, one in outputs.items()
    }
    try:
        levels = _levels(answers, settings)
        systems = {prefix: scored_system(tensors) for prefix, tensors in levels.items()}
        # One stream for all systems of a run: they see the same replicates.
        stream = generator(settings.seed, "privacy_performance", "bootstrap")
        replicates = system_replicates(systems, generator=stream, num_replicates=settings.num_bootstrap)
    except EvaluationError as error:
        raise ArtifactError(
            f"stages.{context.name} cannot score {inputs['encoder'].stage}: {error} Check the records of "
            f"{inputs['clients'].stage}, or compute both anew: force=[their names]."
        ) from error
    context.save(
        SCORES, {prefix + name: value for prefix, level in levels.items() for name, value in level.items()}
    )
    found = {prefix: replicate_intervals(values) for prefix, values in replicates.items()}
    metrics = [
        _metric(settings, prefix, name, interval)
        for prefix, intervals in found.items()
        for name, interval in intervals.items()
    ]
    once = {
        "num_models": float(systems[""].num_models),
        **_training(classifier.history, settings, inputs["encoder"]),
    }
    metrics += [Metric(settings.arm, name, value, settings.seed) for name, value in once.items()]
    return Outcome(metrics=metrics, notes=_notes(settings, answers, found))


def _bank(
    classifier: TrainedClassifier, settings: PrivacyPerformanceSettings, stage: str
) -> ClassPrototypes | None:
    """The prototypes that decide; None where the softmax does alone."""
    if settings.inference == "softmax":
        return None
    if classifier.prototypes is None:
        key = f"stages.{stage}.inference"
        raise ConfigError(
            f"{key} must be softmax for a classifier without prototypes, got {settings.inference}.", key=key
        )
    return classifier.prototypes


def _check_outputs(
    outputs: Mapping[str, SplitOutputs],
    bank: ClassPrototypes | None,
    settings: PrivacyPerformanceSettings,
    stage: str,
    encoder: str,
) -> None:
    for split, one in outputs.items():
        if one.logits.ndim != 3 or one.logits.shape[2] != 2:
            raise ArtifactError(
                f"{encoder} must give logits of two classes, [model, n, 2], got {tuple(one.logits.shape)} for {split}."
            )
    unknown = set(settings.margin_modalities or ()) - set(bank.modalities if bank else ())
    if bank is not None and unknown:
        key = f"stages.{stage}.margin_modalities"
        raise ConfigError(
            f"{key} must be among {', '.join(bank.modalities)}, those {encoder} has prototypes of, got "
            f"{settings.margin_modalities}.",
            key=key,
        )


def _levels(
    answers: Mapping[str, AnsweredSplit], settings: PrivacyPerformanceSettings
) -> dict[str, dict[str, Tensor]]:
    """Prefix of the names → stored scores: participants, and segments where they are not the same."""
    pooled = {split: one.by_participant() for split, one in answers.items()}
    levels = {"": score_tensors(pooled, settings)}
    if any(one.has_segments for one in answers.values()):
        levels["segment/"] = score_tensors(answers, settings)
    return levels


def _metric(
    settings: PrivacyPerformanceSettings, prefix: str, name: str, interval: BootstrapInterval
) -> Metric:
    bounds = (interval.low, interval.high) if math.isfinite(interval.low) else (None, None)
    title = f"{prefix}test/{name}" if name in TEST_METRICS else f"{prefix}{name}"
    return Metric(settings.arm, title, interval.estimate, settings.seed, *bounds)


def _training(
    history: Sequence[Mapping[str, float]], settings: PrivacyPerformanceSettings, encoder: Artifact
) -> dict[str, float]:
    """Rounds to the target and bytes a round, from what was logged in training."""
    if not any("val/uar" in row for row in history):
        raise ArtifactError(
            f"{encoder.stage} logged no val/uar in any round. Compute that stage anew: force=[its name]."
        )
    numbers: dict[str, float] = {}
    reached = (
        number for number, row in enumerate(history, 1) if row.get("val/uar", math.nan) >= settings.target_uar
    )
    first = next(reached, None)
    if first is not None:
        numbers["rounds_to_uar"] = float(first)
    for way in ("up", "down"):
        sizes = [row[f"traffic/bytes_{way}"] for row in history if f"traffic/bytes_{way}" in row]
        if sizes:  # pooled records are not sent round by round
            numbers[f"bytes_{way}_per_round"] = sum(sizes) / len(sizes)
    return numbers


def _notes(
    settings: PrivacyPerformanceSettings,
    answers: Mapping[str, AnsweredSplit],
    found: Mapping[str, Mapping[str, BootstrapInterval]],
) -> dict[str, Any]:
    undefined = {
        f"{prefix}{name}": interval.num_undefined
        for prefix, intervals in found.items()
        for name, interval in intervals.items()
        if interval.num_undefined
    }
    notes: dict[str, Any] = {
        "inference": settings.inference,
        "target_uar": settings.target_uar,
        "num_participants": {split: len(one.participant.unique()) for split, one in answers.items()},
        "num_records": {split: len(one.participant) for split, one in answers.items()},
        "num_undefined_replicates": undefined,
        "definitions": DEFINITIONS,
    }
    if settings.inference != "softmax":
        notes["margin_modalities"] = settings.margin_modalities or "all"
    if settings.inference == "hybrid":
        notes["confidence_threshold"] = settings.confidence_threshold
    return notes
