"""Train the DenseNet once per seed on one arm's images; test it on real images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedsynth.evaluation import replicate_intervals
from fedsynth.evaluation.macro_auroc import MACRO, auroc_replicates, both_kinds
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed, generator
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.image_set_kinds import MULTICLASS
from fedsynth.stages.out_of_memory import with_smaller_batches
from fedsynth.stages.tstr_densenet.classifier_settings import ClassifierSettings
from fedsynth.stages.tstr_densenet.fitting import (
    Fitted,
    check_same_task,
    fit_classifier,
    images_digest,
)
from fedsynth.stages.tstr_densenet.spec import TSTRDenseNetSettings
from fedsynth.stages.tstr_densenet.trained import CLASSIFIER, TrainedDenseNet

SCORES = "scores.safetensors"


def run(settings: TSTRDenseNetSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Metrics of every seed with intervals over test patients; weights and scores of the first, scores of all.

    ``scores.safetensors`` holds ``{val,test}.probability`` [n, k] of the first seed, whose weights are stored,
    ``{val,test}.probability_by_seed`` [seed, n, k], ``{val,test}.label`` and ``{val,test}.patient``.

    Raises:
        DataError: Training images of other classes, task or size than the real ones.
    """
    train = read_image_set(inputs["train"])
    real = {split: read_image_set(inputs["images"], split) for split in ("val", "test")}
    check_same_task(train, real["test"], inputs["train"].stage)
    scores: dict[str, list[Tensor]] = {"val": [], "test": []}
    metrics: list[Metric] = []
    epochs: dict[str, int] = {}
    for number, seed in enumerate(settings.seeds):
        fitted = fit_classifier(
            settings, train, real["val"],
            seed=derive_seed(seed, "tstr_densenet"), context=context, name=f"classifier-{seed}",
        )  # fmt: skip
        metrics.append(Metric(settings.arm, "val/loss", fitted.val_loss, seed))
        epochs[str(seed)] = fitted.epoch
        for split, images in real.items():
            scores[split].append(test_probability(fitted, images, settings, context))
        if number == 0:
            context.save(CLASSIFIER, fitted.network.state_dict())
            if context.rank == 0:
                fitted.history.write(context.output)
    _save_scores(scores, real, context)
    found, undefined = _test_metrics(torch.stack(scores["test"]), real["test"], settings)
    defined = both_kinds(real["test"].targets())
    notes = {
        "task": train.task,
        "classes": list(train.classes),
        "num_training": len(train),
        "training_counts": train.counts(),
        "test_counts": real["test"].counts(),
        "test_sha256": images_digest(real["test"]),
        "classes_without_auroc": [name for name, ok in zip(train.classes, defined, strict=True) if not ok],
        "num_undefined_replicates": undefined,
        "best_epoch": epochs,
    }
    return Outcome(metrics=metrics + found, notes=notes)


def test_probability(
    fitted: Fitted, images: ImageSet, settings: ClassifierSettings, context: StageContext
) -> Tensor:
    """Probabilities of real images [n, k], by the views the settings ask for."""
    wants_gpu = context.trainer.get("accelerator", "cpu") in ("auto", "gpu", "cuda")
    device = "cuda" if wants_gpu and torch.cuda.is_available() else "cpu"
    trained = TrainedDenseNet(fitted.network.to(device), images.task, images.classes, device)
    size = settings.resize_size if settings.test_views == "ten_crop" else None
    probability, _ = with_smaller_batches(
        lambda batch_size: trained.probability(images.image, batch_size, ten_crop=size),
        settings.evaluation_batch_size,
        f"stages.{context.name}.evaluation_batch_size",
    )
    fitted.network.cpu()
    return probability


def patients(images: ImageSet) -> Tensor:
    """Of every image; each image its own where none is known."""
    return torch.arange(len(images)) if images.patient is None else images.patient


def _save_scores(
    scores: Mapping[str, list[Tensor]], real: Mapping[str, ImageSet], context: StageContext
) -> None:
    tensors: dict[str, Tensor] = {}
    for split, rows in scores.items():
        tensors |= {
            f"{split}.probability": rows[0],
            f"{split}.probability_by_seed": torch.stack(rows),
            f"{split}.label": real[split].label,
            f"{split}.patient": patients(real[split]),
        }
    context.save(SCORES, tensors)


def _test_metrics(
    probability: Tensor, test: ImageSet, settings: TSTRDenseNetSettings
) -> tuple[list[Metric], int]:
    """``test/auroc`` (macro), ``test/auroc/<class>`` and ``test/accuracy`` of every seed; undefined replicates."""
    names = (*test.classes, MACRO)
    systems = {str(seed): one.unsqueeze(0) for seed, one in zip(settings.seeds, probability, strict=True)}
    replicates = auroc_replicates(
        systems, test.targets(), patients(test),
        generator=generator(settings.seeds[0], "tstr_densenet", "bootstrap"),
        num_replicates=settings.num_bootstrap,
    )  # fmt: skip
    metrics, undefined = [], 0
    for seed, one in zip(settings.seeds, probability, strict=True):
        columns = dict(zip(names, replicates[str(seed)].T, strict=True))
        for name, interval in replicate_intervals(columns).items():
            metric = "test/auroc" if name == MACRO else f"test/auroc/{name}"
            known = math.isfinite(interval.low)
            bounds = (interval.low, interval.high) if known else (None, None)
            metrics.append(Metric(settings.arm, metric, interval.estimate, seed, *bounds))
            undefined = interval.num_undefined if name == MACRO else undefined
        if test.task == MULTICLASS:
            accuracy = float((one.argmax(1) == test.label).double().mean())
            metrics.append(Metric(settings.arm, "test/accuracy", accuracy, seed))
    return metrics, undefined
