"""Train the classifier once per seed on one arm's latents; test it on real test latents."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.evaluation import (
    balanced_accuracy_threshold,
    classification_metrics,
    expected_calibration_error,
    f1_threshold,
)
from fedsynth.models.classifiers import LatentClassifier
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.training import EpochStream, batch_share, fit, seed_everything
from fedsynth.stages.tstr_mlp.datamodule import ArmLatentsData
from fedsynth.stages.tstr_mlp.module import TSTRClassifier
from fedsynth.stages.tstr_mlp.spec import TSTRSettings

SPLITS = ("val", "test")


def run(settings: TSTRSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Test scores and metrics of every classifier seed."""
    real = inputs["latents"].load("latents.safetensors")
    latent, label = training_latents(inputs["train"], settings.samples_per_class)
    if len(label.unique()) < 2:
        raise DataError(f"the training latents of arm {settings.arm!r} hold one class only; TSTR needs both.")
    metrics: list[Metric] = []
    scores: dict[str, list[Tensor]] = {}
    labels = {split: real[f"{split}.label"] for split in SPLITS}
    for seed in settings.classifier_seeds:
        network = _train(latent, label, seed, settings, context)
        context.require_finite(f"the classifier of seed {seed}", network.state_dict())
        logits = {split: _logit(network, real[f"{split}.latent"]) for split in SPLITS}
        probability = {split: logit.sigmoid() for split, logit in logits.items()}
        values = _test_metrics(probability, labels, settings.num_bins)
        metrics += [Metric(settings.arm, f"test/{name}", value, seed) for name, value in values.items()]
        for split in SPLITS:
            scores.setdefault(f"{split}.probability", []).append(probability[split])
            scores.setdefault(f"{split}.logit", []).append(logits[split])
    stacked = {name: torch.stack(rows) for name, rows in scores.items()}
    context.save("scores.safetensors", {**stacked, **{f"{split}.label": labels[split] for split in SPLITS}})
    return Outcome(metrics=metrics, notes={"num_training": len(label)})


def _test_metrics(
    probability: Mapping[str, Tensor], labels: Mapping[str, Tensor], num_bins: int
) -> dict[str, float]:
    """Metrics on test records, at the threshold with the best balanced accuracy on validation records."""
    threshold = balanced_accuracy_threshold(probability["val"], labels["val"])
    values = classification_metrics(probability["test"], labels["test"], threshold, num_bins=num_bins)
    at_f1 = f1_threshold(probability["val"], labels["val"])
    found = {
        **{name: value for name, value in values.items() if name != "nll"},
        "ece_10": expected_calibration_error(probability["test"], labels["test"], 10),
        "threshold": threshold,
        "loss": values["nll"],
        "f1_at_f1_threshold": classification_metrics(probability["test"], labels["test"], at_f1)["f1"],
        "f1_threshold": at_f1,
    }
    return {name: float(value) for name, value in found.items()}


def training_latents(source: Artifact, samples_per_class: int | None) -> tuple[Tensor, Tensor]:
    """Latents and labels of an arm: all real training latents, or samples of a generator.

    Of a generator the first ``samples_per_class`` of each class: equal sizes, because both a classifier and the
    neighborhoods of PRDC change with the number of samples. None takes all there are, in the generator's own class
    shares; such numbers do not belong beside those of equal sizes.
    """
    # fidelity: primary-vs-standardized
    if "latents.safetensors" in source.manifest["files"]:
        tensors = source.load("latents.safetensors")
        return tensors["train.latent"], tensors["train.label"]
    tensors = source.load("samples.safetensors")
    chosen = torch.cat(
        [(tensors["label"] == value).nonzero()[:samples_per_class, 0] for value in tensors["label"].unique()]
    )
    return tensors["latent"][chosen], tensors["label"][chosen]


def _train(
    latent: Tensor, label: Tensor, seed: int, settings: TSTRSettings, context: StageContext
) -> LatentClassifier:
    derived = derive_seed(seed, "tstr_mlp")
    data = ArmLatentsData(
        latent,
        label,
        batch_size=batch_share(settings.batch_size, context),
        seed=derived,
        rank=context.rank,
        world_size=context.world_size,
    )
    seed_everything(derived)
    module = TSTRClassifier(
        dim=latent.shape[1],
        hidden_dims=list(settings.hidden_dims),
        dropout=settings.dropout,
        learning_rate=settings.learning_rate,
    )
    std = latent.double().std(0, correction=0)
    module.network.set_standardization(
        latent.double().mean(0).float(), torch.where(std > 0, std, 1.0).float()
    )
    fit(
        module,
        data,
        context,
        network=module.network,
        callbacks=[EpochStream(derived)],
        checkpoint_every=20,
        name=f"classifier-{seed}.ckpt",
    )
    return module.network.eval().cpu()


@torch.inference_mode()
def _logit(network: LatentClassifier, latent: Tensor) -> Tensor:
    """log q / (1 - q) of Eq. (32), in float64."""
    return network(latent).double()
