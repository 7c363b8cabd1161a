"""Answers of a trained classifier to real images, and the numbers that are reported of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.evaluation import replicate_intervals
from fedsynth.evaluation.macro_auroc import MACRO, auroc_replicates
from fedsynth.pipeline.stage import Metric, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.image_set_kinds import MULTICLASS
from fedsynth.stages.out_of_memory import with_smaller_batches
from fedsynth.stages.tstr_densenet.classifier_settings import ClassifierSettings
from fedsynth.stages.tstr_densenet.fitting import Fitted
from fedsynth.stages.tstr_densenet.trained import TrainedDenseNet

TEN_CROP = "ten_crop"


def test_probability(
    fitted: Fitted, images: ImageSet, settings: ClassifierSettings, context: StageContext
) -> Float[Tensor, "n k"]:
    """Probabilities of real images, by the views the settings ask for."""
    device = computing_device(context)
    trained = TrainedDenseNet(fitted.network.to(device), images.task, images.classes, device)
    probability = viewed_probability(
        trained, images, test_views=settings.test_views, resize_size=settings.resize_size,
        batch_size=settings.evaluation_batch_size, context=context,
    )  # fmt: skip
    fitted.network.cpu()
    return probability


def viewed_probability(
    trained: TrainedDenseNet,
    images: ImageSet,
    *,
    test_views: str,
    resize_size: int,
    batch_size: int,
    context: StageContext,
) -> Float[Tensor, "n k"]:
    """Probabilities of one view or averaged over ten crops, in smaller batches where memory runs out."""
    size = resize_size if test_views == TEN_CROP else None
    probability, _ = with_smaller_batches(
        lambda most: trained.probability(images.image, most, ten_crop=size),
        batch_size,
        f"stages.{context.name}.evaluation_batch_size",
    )
    return probability


def patients(images: ImageSet) -> Int64[Tensor, " n"]:
    """Of every image; each image its own where none is known."""
    return torch.arange(len(images)) if images.patient is None else images.patient


def test_metrics(
    probability: Float[Tensor, "seed n k"],
    test: ImageSet,
    *,
    arm: str,
    seeds: Sequence[int],
    num_bootstrap: int,
) -> tuple[list[Metric], int]:
    """``test/auroc`` (macro), ``test/auroc/<class>`` and ``test/accuracy`` of every seed.

    Intervals are percentiles over resampled patients, the same ones for all seeds and, on the same images, for all
    classifiers with these seeds. They hold the trained network fixed.

    Args:
        probability: Of the classifier of every seed.
        test: Real images.
        arm: Under which the numbers stand.
        seeds: Of the classifiers.
        num_bootstrap: Replicates.

    Returns:
        The metrics, and the number of replicates of the last seed without a macro AUROC.
    """
    names = (*test.classes, MACRO)
    systems = {str(seed): one.unsqueeze(0) for seed, one in zip(seeds, probability, strict=True)}
    replicates = auroc_replicates(
        systems, test.targets(), patients(test),
        generator=generator(seeds[0], "tstr_densenet", "bootstrap"), num_replicates=num_bootstrap,
    )  # fmt: skip
    metrics, undefined = [], 0
    for seed, one in zip(seeds, probability, strict=True):
        columns = dict(zip(names, replicates[str(seed)].T, strict=True))
        for name, interval in replicate_intervals(columns).items():
            metric = "test/auroc" if name == MACRO else f"test/auroc/{name}"
            known = math.isfinite(interval.low)
            bounds = (interval.low, interval.high) if known else (None, None)
            metrics.append(Metric(arm, metric, interval.estimate, seed, *bounds))
            undefined = interval.num_undefined if name == MACRO else undefined
        if test.task == MULTICLASS:
            accuracy = float((one.argmax(1) == test.label).double().mean())
            metrics.append(Metric(arm, "test/accuracy", accuracy, seed))
    return metrics, undefined
