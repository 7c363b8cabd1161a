"""Train the DenseNet once per seed on one arm's images; test it on real images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsynth.evaluation.macro_auroc import both_kinds
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.tstr_densenet.fitting import check_same_task, fit_classifier, images_digest
from fedsynth.stages.tstr_densenet.scoring import patients, test_metrics, test_probability
from fedsynth.stages.tstr_densenet.spec import TSTRDenseNetSettings
from fedsynth.stages.tstr_densenet.trained import weights_file

SCORES = "scores.safetensors"


def run(settings: TSTRDenseNetSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Metrics of every seed with intervals over test patients; weights and scores of every seed.

    ``classifier.safetensors`` holds the weights of the first seed, ``classifier-<seed>.safetensors`` those of each
    further one. ``scores.safetensors`` holds ``{val,test}.probability`` [n, k] of the first seed,
    ``{val,test}.probability_by_seed`` [seed, n, k], ``{val,test}.label`` and ``{val,test}.patient``;
    of real training images also their patients, each once, as ``train.patient``.

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
        context.save(weights_file(settings.seeds, seed), fitted.network.state_dict())
        if number == 0 and context.rank == 0:
            fitted.history.write(context.output)
    _save_scores(scores, real, train, context)
    found, undefined = test_metrics(
        torch.stack(scores["test"]), real["test"],
        arm=settings.arm, seeds=settings.seeds, num_bootstrap=settings.num_bootstrap,
    )  # fmt: skip
    defined = both_kinds(real["test"].targets())
    notes = {
        "task": train.task,
        "classes": list(train.classes),
        "image_shape": list(train.image.shape[1:]),
        "num_training": len(train),
        "training_counts": train.counts(),
        "test_counts": real["test"].counts(),
        "test_sha256": images_digest(real["test"]),
        "classes_without_auroc": [name for name, ok in zip(train.classes, defined, strict=True) if not ok],
        "num_undefined_replicates": undefined,
        "best_epoch": epochs,
    }
    return Outcome(metrics=metrics + found, notes=notes)


def _save_scores(
    scores: Mapping[str, list[Tensor]], real: Mapping[str, ImageSet], train: ImageSet, context: StageContext
) -> None:
    tensors: dict[str, Tensor] = {}
    for split, rows in scores.items():
        tensors |= {
            f"{split}.probability": rows[0],
            f"{split}.probability_by_seed": torch.stack(rows),
            f"{split}.label": real[split].label,
            f"{split}.patient": patients(real[split]),
        }
    if train.patient is not None:
        tensors["train.patient"] = train.patient.unique()
    context.save(SCORES, tensors)
