"""Train on all folds but one, test on real images; every method, every fold; finished folds are not done again."""

from __future__ import annotations

import json
import logging
import os
import statistics
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.evaluation.macro_auroc import both_kinds, macro_auroc
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.cross_validation.folds import folds_of, origins
from fedsynth.stages.cross_validation.ranks import rank_summary
from fedsynth.stages.cross_validation.spec import METHODS, CrossValidationSettings, arm_of
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.image_set_kinds import MULTICLASS
from fedsynth.stages.tstr_densenet.fitting import check_same_task, fit_classifier
from fedsynth.stages.tstr_densenet.scoring import test_probability

log = logging.getLogger(__name__)
FOLDS = "folds.json"


def run(settings: CrossValidationSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``cv/auroc`` (mean over folds), ``cv/auroc_std`` and ``cv/mean_rank`` of every method; ``folds.json``.

    Fold f of a method is the AUROC on all real test images of a classifier trained on the method's images outside
    fold f, its checkpoint chosen by the real validation images. The seed of fold f is the same for all methods.

    Raises:
        ConfigError: Names or folds that cannot be.
        DataError: Sets that do not fit the real images, or a fold that leaves one class.
    """
    real = {split: read_image_set(inputs["images"], split) for split in ("train", "val", "test")}
    if not bool(both_kinds(real["test"].targets()).any()):
        raise DataError(
            f"stages.{inputs['images'].stage} has test images of one kind only: {real['test'].counts()}."
        )
    arms = _arms(settings, inputs)
    folds = _folds(settings, inputs, arms, real, context)
    scores: dict[str, list[float]] = {}
    done = _finished(context)
    for role, arm in arms.items():
        images = read_image_set(inputs[role])  # one set in memory at a time
        for fold in range(settings.num_folds):
            name = f"{role}-{fold}"
            if name not in done:
                kept = images.rows(folds[role] != fold)
                done[name] = _score(kept, real, settings, fold, context, name)
        scores[arm] = [done[f"{role}-{fold}"] for fold in range(settings.num_folds)]
    ranks = rank_summary(scores, settings.alpha)
    if context.rank == 0:
        written = json.dumps({"scores": scores, "ranks": ranks}, indent=1)
        (context.output / FOLDS).write_text(written + "\n")
    notes = {
        **ranks,
        "unit": settings.unit,
        "stages": {arm: inputs[role].stage for role, arm in arms.items()},
        "num_images": {arm: len(folds[role]) for role, arm in arms.items()},
        "descriptive": "folds share training images, so p-values are descriptive",
    }
    return Outcome(metrics=_metrics(scores, ranks["mean_ranks"], settings.seed), notes=notes)


def _arms(settings: CrossValidationSettings, inputs: Mapping[str, Artifact]) -> dict[str, str]:
    """What each method is called, by role."""
    roles = [role for role in METHODS if role in inputs]
    arms = settings.arms or [arm_of(inputs[role].manifest["settings"], inputs[role].stage) for role in roles]
    if len(set(arms)) < len(roles):
        raise ConfigError(f"The methods need names of their own, got {arms}. Give arms=[…].", key="arms")
    return dict(zip(roles, arms, strict=True))


def _folds(
    settings: CrossValidationSettings,
    inputs: Mapping[str, Artifact],
    arms: Mapping[str, str],
    real: Mapping[str, ImageSet],
    context: StageContext,
) -> dict[str, Tensor]:
    """The fold of every image, by role. Everything that cannot be is refused here, before anything is trained."""
    rows, targets = {}, {}
    for role in arms:
        images = read_image_set(inputs[role])
        check_same_task(images, real["test"], inputs[role].stage)
        rows[role], targets[role] = origins(images), images.targets()
    found = {}
    for role, row in rows.items():
        found[role] = folds_of(
            row, real["train"], num_folds=settings.num_folds, unit=settings.unit, seed=settings.seed,
            path=f"stages.{context.name}",
        )  # fmt: skip
        for fold in range(settings.num_folds):
            left = targets[role][found[role] != fold].any(0).sum() if len(row) else 0
            if int(left) < (2 if real["test"].task == MULTICLASS else 1):
                raise DataError(
                    f"stages.{inputs[role].stage} outside fold {fold} holds images of one class only. Take fewer folds "
                    f"(stages.{context.name}.num_folds) or more images."
                )
    return found


def _score(
    kept: ImageSet,
    real: Mapping[str, ImageSet],
    settings: CrossValidationSettings,
    fold: int,
    context: StageContext,
    name: str,
) -> float:
    """Macro AUROC of one training; written to scratch, its checkpoint removed."""
    seed = derive_seed(settings.seed, "cross_validation", fold)
    fitted = fit_classifier(settings, kept, real["val"], seed=seed, context=context, name=name)
    probability = test_probability(fitted, real["test"], settings, context)
    score = macro_auroc(probability, real["test"].targets())
    if context.rank == 0:
        folder = context.scratch / "folds"
        folder.mkdir(exist_ok=True)
        partial = folder / f"{name}.partial"
        partial.write_text(json.dumps({"auroc": score}))
        os.replace(partial, folder / f"{name}.json")
        (context.scratch / "checkpoints" / f"{name}.ckpt").unlink(missing_ok=True)
    log.info("stages.%s: %s scores %.4f.", context.name, name, score)
    return score


def _finished(context: StageContext) -> dict[str, float]:
    """Scores of the folds that an earlier, killed run finished."""
    files: list[Path] = sorted((context.scratch / "folds").glob("*.json"))
    return {path.stem: float(json.loads(path.read_text())["auroc"]) for path in files}


def _metrics(scores: Mapping[str, list[float]], mean_ranks: Mapping[str, float], seed: int) -> list[Metric]:
    metrics = []
    for arm, values in scores.items():
        metrics += [
            Metric(arm, "cv/auroc", statistics.fmean(values), seed),
            Metric(arm, "cv/auroc_std", statistics.stdev(values), seed),
            Metric(arm, "cv/mean_rank", mean_ranks[arm], seed),
        ]
    return metrics
