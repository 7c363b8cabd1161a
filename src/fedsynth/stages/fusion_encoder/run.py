"""Train the fusion encoder by federated averaging; test it with both modalities and with each alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsynth.console import console
from fedsynth.data.paired import PairedClients
from fedsynth.evaluation import balanced_accuracy_threshold, bootstrap_intervals, classification_metrics
from fedsynth.federated.client import Federation
from fedsynth.federated.progress import FederatedProgressBar
from fedsynth.federated.sharding import ClientShardedStrategy
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.models.fusion_classifier import FusionClassifier, FusionOutput
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.privacy import LedgerEntry
from fedsynth.seeding import derive_seed, generator
from fedsynth.stages.fusion_encoder.datamodule import PairedClientsData
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.network import predict
from fedsynth.stages.fusion_encoder.spec import UPDATES, FusionEncoderSettings
from fedsynth.stages.training import BestWeights, fit, seed_everything

STRATEGIES = {"fedavg": FedAvg}
ARMS = {"both": (True, True), "image_only": (True, False), "ecg_only": (False, True)}
NETWORK = (
    "backbone", "image_channels", "signal_channels", "signal_kernels", "normalization", "fusion", "token_dim",
    "num_heads", "latent_dim", "dropout", "missing",
)  # fmt: skip


def run(settings: FusionEncoderSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Global weights, the curve by round, test scores of every arm."""
    pairs = PairedClients.from_tensors(inputs["clients"].load("pairs.safetensors"))
    seed = derive_seed(settings.seed, "fusion_encoder")
    seed_everything(seed)
    network = {name: getattr(settings, name) for name in NETWORK}
    network = {name: list(value) if isinstance(value, list) else value for name, value in network.items()}
    module = FusionEncoder(
        network=network,
        modality_dropout=settings.modality_dropout,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    if "xray_encoder" in inputs:
        module.network.image_encoder.load_state_dict(inputs["xray_encoder"].load("encoder.safetensors"))
    federation = Federation(
        local_epochs=settings.local_epochs,
        participation=settings.participation,
        seed=seed,
        strategy=STRATEGIES[settings.strategy](),
        num_clients=int(pairs.train.client.max()) + 1,
    )
    arguments: dict[str, object] = {"federation": federation, "enable_progress_bar": True}
    if context.world_size > 1:
        arguments["strategy"] = ClientShardedStrategy()
    best = BestWeights(module.network, "val/loss")
    history = fit(
        module,
        PairedClientsData(pairs, batch_size=settings.batch_size, seed=seed),
        context,
        network=module.network,
        trainer_class=FederatedTrainer,
        trainer_arguments=arguments,
        callbacks=[FederatedProgressBar(console()), *([best] if settings.checkpoint == "best" else [])],
    )
    if context.rank != 0:
        return Outcome()
    best.restore()
    context.save("model.safetensors", module.network.state_dict())
    history.write(context.output)
    chosen = best.epoch + 1 if best.weights else len(history.rows)
    return evaluate(module.network.cpu(), pairs, settings, context, {"round": chosen})


def evaluate(
    network: FusionClassifier,
    pairs: PairedClients,
    settings: FusionEncoderSettings,
    context: StageContext,
    notes: dict[str, Any],
) -> Outcome:
    """Test metrics of the three missing-modality arms at thresholds chosen on validation, with intervals."""
    metrics: list[Metric] = []
    scores: dict[str, Tensor] = {"test.label": pairs.test.label}
    splits = {"val": pairs.val, "test": pairs.test}
    for arm, shown in ARMS.items():
        mask = torch.tensor(shown)
        outputs = {name: predict(network, split.image, split.ecg, mask) for name, split in splits.items()}
        probability = {name: output.logits.double().softmax(1)[:, 1] for name, output in outputs.items()}
        threshold = balanced_accuracy_threshold(probability["val"], pairs.val.label)
        for name, split in splits.items():
            metrics += _metrics(arm, name, probability[name], split.label, threshold, settings)
            scores[f"{arm}/{name}.probability"] = probability[name]
        metrics.append(Metric(arm, "test/threshold", threshold, settings.seed))
        if arm == "both":
            scores["test.probability"] = probability["test"]
            notes = {**notes, "gates": _gate_statistics(outputs["test"], pairs.test.label)}
    context.save("scores.safetensors", scores)
    entry = LedgerEntry.without_guarantee(stage=context.name, published=UPDATES)
    return Outcome(metrics=metrics, ledger=[entry.to_record()], notes=notes)


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


def _gate_statistics(output: FusionOutput, label: Tensor) -> dict[str, Any]:
    """Class means of the gates and of the head-averaged attention matrix, order (image, ECG)."""
    return {
        name: {
            "gates": output.gates[label == value].mean(0).tolist(),
            "attention": output.attention[label == value].mean(0).tolist(),
        }
        for value, name in enumerate(("negative", "positive"))
    }
