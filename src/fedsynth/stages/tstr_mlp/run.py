"""Train the classifier once per seed on one arm's latents; test it on real test latents."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.evaluation import balanced_accuracy_threshold, classification_metrics, f1_threshold
from fedsynth.models.classifiers import LatentClassifier
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.training import EpochStream, batch_share, fit, seed_everything
from fedsynth.stages.tstr_mlp.datamodule import ArmLatentsData
from fedsynth.stages.tstr_mlp.module import TSTRClassifier
from fedsynth.stages.tstr_mlp.spec import TSTRSettings


def run(settings: TSTRSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Test scores and metrics of every classifier seed."""
    real = inputs["latents"].load("latents.safetensors")
    latent, label = training_latents(inputs["train"], settings.samples_per_class)
    if len(label.unique()) < 2:
        raise DataError(f"the training latents of arm {settings.arm!r} hold one class only; TSTR needs both.")
    metrics: list[Metric] = []
    scores: dict[str, list[Tensor]] = {}
    for seed in settings.classifier_seeds:
        network = _train(latent, label, seed, settings, context)
        context.require_finite(f"the classifier of seed {seed}", network.state_dict())
        probability = {split: _probability(network, real[f"{split}.latent"]) for split in ("val", "test")}
        threshold = balanced_accuracy_threshold(probability["val"], real["val.label"])
        values = classification_metrics(
            probability["test"], real["test.label"], threshold, num_bins=settings.num_bins
        )
        values["threshold"] = threshold
        values["loss"] = values.pop("nll")
        at_f1 = f1_threshold(probability["val"], real["val.label"])
        at_f1_metrics = classification_metrics(probability["test"], real["test.label"], at_f1)
        values |= {"f1_at_f1_threshold": at_f1_metrics["f1"], "f1_threshold": at_f1}
        metrics += [
            Metric(settings.arm, f"test/{name}", float(value), seed) for name, value in values.items()
        ]
        for split, value in probability.items():
            scores.setdefault(f"{split}.probability", []).append(value)
    stacked = {name: torch.stack(values) for name, values in scores.items()}
    labels = {"test.label": real["test.label"], "val.label": real["val.label"]}
    context.save("scores.safetensors", {**stacked, **labels})
    return Outcome(metrics=metrics, notes={"num_training": len(label)})


def training_latents(source: Artifact, samples_per_class: int) -> tuple[Tensor, Tensor]:
    """Latents and labels of an arm: all real training latents, or equally many samples of any generator.

    Equal sizes, because both a classifier and the neighborhoods of PRDC change with the number of samples.
    """
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
def _probability(network: LatentClassifier, latent: Tensor) -> Tensor:
    return network(latent).double().sigmoid()
