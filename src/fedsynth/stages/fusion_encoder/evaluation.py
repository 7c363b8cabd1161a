"""What a trained fusion encoder is worth: metrics, scores, gates and attention on validation and test pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedsynth.data.paired import PairedClients
from fedsynth.evaluation import (
    auroc,
    balanced_accuracy_threshold,
    bootstrap_intervals,
    classification_metrics,
)
from fedsynth.federated.client import ClientId
from fedsynth.federated.state import State
from fedsynth.models.fusion_classifier import FusionClassifier, FusionOutput
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.fusion_encoder.network import MODALITIES, modality_mask, predict
from fedsynth.stages.fusion_encoder.spec import FusionEncoderSettings
from fedsynth.stages.system_arms import arms_of

CLASSES = ("negative", "positive")


def evaluate(
    network: FusionClassifier, pairs: PairedClients, settings: FusionEncoderSettings, context: StageContext
) -> Outcome:
    """Metrics of every arm at thresholds chosen on validation, with intervals on the test split.

    Writes ``scores.safetensors``: ``<split>.label``, ``<arm>/<split>.probability`` and ``<arm>/<split>.logit``
    (of the positive class; log-odds, i.e. the difference of the two logits; float64), and
    ``test.probability`` of the arm that shows everything.
    """
    splits = {"val": pairs.val, "test": pairs.test}
    scores: dict[str, Tensor] = {f"{name}.label": split.label for name, split in splits.items()}
    metrics: list[Metric] = []
    notes: dict[str, Any] = {}
    for arm, shown in arms_of(settings.modalities).items():
        mask = modality_mask(shown)
        outputs = {name: predict(network, split.image, split.ecg, mask) for name, split in splits.items()}
        logits = {name: output.logits.double() for name, output in outputs.items()}
        probability = {name: value.softmax(1)[:, 1] for name, value in logits.items()}
        threshold = balanced_accuracy_threshold(probability["val"], pairs.val.label)
        for name, split in splits.items():
            metrics += _metrics(arm, name, probability[name], split.label, threshold, settings)
            scores[f"{arm}/{name}.probability"] = probability[name]
            scores[f"{arm}/{name}.logit"] = logits[name][:, 1] - logits[name][:, 0]
        metrics.append(Metric(arm, "test/threshold", threshold, settings.seed))
        scores.setdefault("test.probability", probability["test"])
        if arm == "both":
            statistics = gate_statistics(outputs["test"], pairs.test.label)
            notes = {"gates": statistics}
            metrics += gate_metrics(statistics, settings.seed)
    context.save("scores.safetensors", scores)
    return Outcome(metrics=metrics, notes=notes)


def gate_statistics(output: FusionOutput, label: Tensor) -> dict[str, Any]:
    """Class means of the gates and of the head-averaged attention matrix, order (image, ECG)."""
    return {
        name: {
            "gates": output.gates[label == value].mean(0).tolist(),
            "attention": output.attention[label == value].mean(0).tolist(),
        }
        for value, name in enumerate(CLASSES)
    }


def gate_metrics(statistics: Mapping[str, Any], seed: int) -> list[Metric]:
    """The same numbers as metrics of arm ``gates``.

    ``<class>/gate_<token>`` and ``<class>/attention_<query>_to_<key>``; the attention of a query sums to 1.
    """
    metrics = []
    for name, means in statistics.items():
        for index, query in enumerate(MODALITIES):
            metrics.append(Metric("gates", f"{name}/gate_{query}", means["gates"][index], seed))
            for value, key in zip(means["attention"][index], MODALITIES, strict=True):
                metrics.append(Metric("gates", f"{name}/attention_{query}_to_{key}", value, seed))
    return metrics


def client_metrics(
    network: FusionClassifier,
    normalization: Mapping[ClientId, State],
    pairs: PairedClients,
    settings: FusionEncoderSettings,
) -> list[Metric]:
    """Test AUROC of every client's own model: the global weights with the client's normalization.

    The network is left as it was. No metric without clients of their own (FedAvg).
    """
    whole = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    mask = modality_mask(settings.modalities)
    metrics = []
    for client, own in normalization.items():
        network.load_state_dict({**whole, **own})
        logits = predict(network, pairs.test.image, pairs.test.ecg, mask).logits.double()
        value = auroc(logits[:, 1] - logits[:, 0], pairs.test.label)
        metrics.append(Metric(f"client_{client}", "test/auroc", float(value), settings.seed))
    network.load_state_dict(whole)
    return metrics


def _metrics(
    arm: str,
    split: str,
    probability: Tensor,
    label: Tensor,
    threshold: float,
    settings: FusionEncoderSettings,
) -> list[Metric]:
    """Every metric of one arm and split; bootstrap intervals for the test split."""
    values: dict[str, float] = classification_metrics(
        probability, label, threshold, num_bins=settings.num_bins
    )
    intervals = {}
    if split == "test":
        stream = generator(settings.seed, "fusion_encoder", "bootstrap", arm)
        intervals = bootstrap_intervals(
            probability, label, threshold,
            generator=stream, num_replicates=settings.num_bootstrap, num_bins=settings.num_bins,
        )  # fmt: skip
    metrics = []
    for key, value in values.items():
        interval = intervals.get(key)
        bounds = (interval.low, interval.high) if interval and math.isfinite(interval.low) else (None, None)
        name = "loss" if key == "nll" else key
        metrics.append(Metric(arm, f"{split}/{name}", float(value), settings.seed, *bounds))
    return metrics
