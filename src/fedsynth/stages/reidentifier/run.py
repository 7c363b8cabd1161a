"""Train the identity network and choose its thresholds on patients it has not seen."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import Callback, EarlyStopping

from fedsynth.attacks.reidentification import fit_pair_logistic
from fedsynth.errors import DataError
from fedsynth.models.siamese import IMAGENET_GREY, SiameseNetwork
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.seeding import derive_seed, generator
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.reidentifier.datamodule import PairData
from fedsynth.stages.reidentifier.held_out import HeldOutPairs, held_out_pairs, pair_scores
from fedsynth.stages.reidentifier.module import IdentityTraining
from fedsynth.stages.reidentifier.pairs import (
    PairTable,
    check_patients,
    pair_table,
    require_pairs,
    same_patient_pairs,
)
from fedsynth.stages.reidentifier.reporting import cannot_tell, class_table, metrics, operating_table
from fedsynth.stages.reidentifier.spec import ReidentifierSettings
from fedsynth.stages.reidentifier.trained import PATIENTS_FILE
from fedsynth.stages.training import BestWeights, EpochStream, batch_share, fit, seed_everything

log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")


def run(settings: ReidentifierSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Weights of the best epoch by held-out loss, its scores of held-out pairs, and thresholds."""
    images = {split: read_image_set(inputs["images"], split) for split in SPLITS}
    tables = {split: pair_table(images[split]) for split in SPLITS}
    check_patients(tables, context.name)
    held_out = _held_out(settings, images, tables, context.name)
    seed = derive_seed(settings.seed, "reidentifier")
    train = tables["train"]
    pairs = same_patient_pairs(
        train, max_per_patient=settings.max_pairs_per_patient, generator=generator(seed, "capped pairs")
    )
    if settings.pairs == "augmentation":
        train, pairs = pair_table(images["train"], use_patients=False), pairs[:0]
    else:
        require_pairs(pairs, train, "train", context.name)
    data = PairData(
        train,
        pairs,
        held_out["val"],
        batch_size=batch_share(settings.batch_size, context),
        patient_share=settings.patient_share,
        num_steps=settings.steps_per_epoch,
        negatives=None if settings.loss == "infonce_mix" else settings.negatives,
        seed=seed,
        rank=context.rank,
        world_size=context.world_size,
    )
    seed_everything(seed)
    shape = network_shape(settings, images["train"])
    network = SiameseNetwork(**shape, weights=settings.weights)
    module = _training(settings, network, held_out["val"], seed)
    best = BestWeights(network, "val/loss")
    stop: list[Callback] = (
        [] if settings.patience is None else [EarlyStopping("val/loss", patience=settings.patience)]
    )
    history = fit(module, data, context, network=network, callbacks=[EpochStream(seed), best, *stop])
    if context.rank != 0:
        return Outcome()
    history.write(context.output)
    best.restore()
    notes = {"network": shape, "epochs": len(history.rows), "best_epoch": best.epoch}
    return _finish(settings, network.cpu().eval(), images["train"], held_out, len(pairs), notes, context)


def network_shape(settings: ReidentifierSettings, train: ImageSet) -> dict[str, Any]:
    """What ``SiameseNetwork`` is built from, besides starting weights."""
    if train.image.shape[1] != 1:
        raise DataError(f"The identity network takes grey images, got {train.image.shape[1]} channels.")
    pixels = train.image.float() / 255 if len(train) <= 10_000 else train.image[:10_000].float() / 255
    mean, std = IMAGENET_GREY if settings.weights is not None else (float(pixels.mean()), float(pixels.std()))
    return {
        "backbone": settings.backbone,
        "channels": list(settings.channels),
        "embedding_dim": settings.embedding_dim,
        "head": "cosine" if settings.loss == "infonce_mix" else "difference",
        "input_size": settings.input_size,
        "pixel_mean": mean,
        "pixel_std": max(std, 1e-3),
    }


def _held_out(
    settings: ReidentifierSettings,
    images: Mapping[str, ImageSet],
    tables: Mapping[str, PairTable],
    stage: str,
) -> dict[str, HeldOutPairs]:
    """Pairs of patients if validation and test images both hold some; else, if allowed, views of one image."""
    made = {}
    for split in ("val", "test"):
        made[split] = _pairs_of(settings, images[split], tables[split], split, None)
    if settings.pairs == "augmentation" and not all(pairs.num_same for pairs in made.values()):
        for split in made:
            made[split] = _pairs_of(settings, images[split], tables[split], split, settings.augmentation)
    for split, pairs in made.items():
        require_pairs(pairs.pair[pairs.is_same == 1], tables[split], split, stage)
        if pairs.num_same == len(pairs.pair):
            raise DataError(
                f"stages.{stage}: the {split} images are all of one patient, so that there is no pair of two persons. "
                "Use data with at least two patients in every split."
            )
    return made


def _pairs_of(
    settings: ReidentifierSettings, images: ImageSet, table: PairTable, split: str, views: float | None
) -> HeldOutPairs:
    return held_out_pairs(
        images,
        table,
        negatives_per_positive=settings.negatives_per_positive,
        max_per_patient=settings.max_pairs_per_patient,
        matched=settings.negatives != "random",
        views=views,
        generator=generator(settings.seed, "reidentifier", "held-out pairs", split),
    )


def _training(
    settings: ReidentifierSettings, network: SiameseNetwork, held_out: HeldOutPairs, seed: int
) -> IdentityTraining:
    return IdentityTraining(
        network,
        held_out,
        loss=settings.loss,
        temperature=settings.temperature,
        negatives=settings.negatives,
        augmentation=settings.augmentation,
        calibration=settings.calibration,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        decay=settings.decay,
        seed=seed,
    )


def _finish(
    settings: ReidentifierSettings,
    network: SiameseNetwork,
    train: ImageSet,
    held_out: Mapping[str, HeldOutPairs],
    num_train_pairs: int,
    notes: dict[str, Any],
    context: StageContext,
) -> Outcome:
    """Calibrate, store the network and its scores, and measure it on both sets of held-out pairs."""
    scores = {split: pair_scores(network, pairs) for split, pairs in held_out.items()}
    context.require_finite("reidentifier.safetensors", {"scores of held-out pairs": scores["val"]})
    if settings.calibration == "platt":
        fitted = fit_pair_logistic(scores["val"], held_out["val"].is_same)
        network.calibrate(fitted.scale, fitted.bias)
    scored = {
        split: (pairs, (network.scale * scores[split] + network.bias).sigmoid())
        for split, pairs in held_out.items()
    }
    context.save("reidentifier.safetensors", network.state_dict())
    if train.patient is not None:  # whoever uses the network checks that it holds out none of them
        context.save(PATIENTS_FILE, {"train": train.patient.unique()})
    for name, split in (("calibration", "val"), ("test_pairs", "test")):
        pairs, probability = scored[split]
        context.save(
            f"{name}.safetensors",
            {"probability": probability, "is_same": pairs.is_same, "label": pairs.label},
        )
    measured = metrics(settings, scored["val"], scored["test"])
    if is_blind := cannot_tell(measured):
        log.warning(
            "stages.%s: the identity network cannot tell pairs of one person from pairs of two (AUROC of validation "
            "pairs at most 1/2); a filter that asks it filters nothing. Train it longer (reidentification.max_epochs, "
            "now %d) or with another reidentification.loss (now %s).",
            *(context.name, notes["epochs"], settings.loss),
        )
    notes |= {
        "cannot_tell": is_blind,
        "pairs": {"train": num_train_pairs} | {split: _counted(pairs) for split, pairs in held_out.items()},
        "held_out_pairs": held_out["val"].kind,
        "operating_points": operating_table(settings, scored["val"], scored["test"]),
        "classes": class_table(settings, *scored["val"], train.classes),
        "image_shape": list(train.image.shape[1:]),
    }
    return Outcome(metrics=measured, notes=notes)


def _counted(pairs: HeldOutPairs) -> dict[str, int]:
    return {
        "one_person": pairs.num_same,
        "two_persons": len(pairs.pair) - pairs.num_same,
        "two_persons_of_other_class": pairs.num_unmatched,
        "patients": len(pairs.patient[pairs.is_same == 1].unique()),
    }
