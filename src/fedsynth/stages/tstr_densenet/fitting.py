"""One training of the classifier: from the checks of its images to the weights of the best epoch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.models.densenet import DenseNetClassifier
from fedsynth.pipeline.stage import StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.image_set_kinds import MULTICLASS
from fedsynth.stages.training import BestWeights, EpochStream, History, batch_share, fit, seed_everything
from fedsynth.stages.tstr_densenet.classifier_settings import ClassifierSettings
from fedsynth.stages.tstr_densenet.datamodule import ImageData
from fedsynth.stages.tstr_densenet.module import DenseNetTraining
from fedsynth.stages.tstr_densenet.network import build_network, network_shape


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained network in eval mode on the CPU, with the weights of the epoch of lowest validation loss."""

    network: DenseNetClassifier
    val_loss: float
    epoch: int
    history: History


def check_same_task(train: ImageSet, real: ImageSet, name: str) -> None:
    """Refuse images that cannot train a classifier for the real ones.

    Args:
        train: To train on.
        real: To choose and test by.
        name: Of the stage that supplied ``train``, for messages.

    Raises:
        DataError: Other classes, task or size; fewer than two images; one class only.
    """
    for what in ("task", "classes"):
        if getattr(train, what) != getattr(real, what):
            raise DataError(
                f"stages.{name} holds images with the {what} {getattr(train, what)}, the real test images have "
                f"{getattr(real, what)}. Take both from one data set, with the same classes."
            )
    if train.image.shape[1:] != real.image.shape[1:]:
        raise DataError(
            f"stages.{name} holds images of shape {list(train.image.shape[1:])}, the real test images are "
            f"{list(real.image.shape[1:])}. Use one image_size for both."
        )
    kinds = [count for count in train.counts().values() if count]
    if len(train) < 2 or (train.task == MULTICLASS and len(kinds) < 2):
        raise DataError(
            f"stages.{name} holds {len(train)} images to train on, of the classes {train.counts()}: a classifier needs "
            "two classes. Loosen the selection, or take more images."
        )


def balanced_weights(train: ImageSet) -> Float[Tensor, " k"]:
    """n / (k n_c) of a class, negatives / positives of a label; 1 for those that no image has.

    Of soft labels n_c is the sum of the probabilities; a class that no source has counts as one that does not occur,
    since what a classifier leaves to it is rounding and would get all the weight.
    """
    positive = train.training_targets().sum(0)
    num = len(train)
    weight = (
        num / (len(train.classes) * positive) if train.task == MULTICLASS else (num - positive) / positive
    )
    occurs = train.targets().sum(0) > 0
    return torch.where(occurs & (positive > 0) & (weight > 0), weight, torch.ones_like(weight))


def fit_classifier(
    settings: ClassifierSettings,
    train: ImageSet,
    val: ImageSet,
    *,
    seed: int,
    context: StageContext,
    name: str,
) -> Fitted:
    """Train a network, going on from its checkpoint if a killed run left one.

    Args:
        settings: Of network and training.
        train: Real or synthetic images.
        val: Real images, whose unweighted loss chooses the epoch.
        seed: Of weights, order and augmentation.
        context: Of the stage.
        name: Of the training among those of the stage; its checkpoint is ``<name>.ckpt``.
    """
    data = ImageData(
        train,
        val,
        batch_size=batch_share(settings.batch_size, context),
        steps_per_epoch=settings.steps_per_epoch,
        seed=seed,
        rank=context.rank,
        world_size=context.world_size,
    )
    balanced = settings.class_weights == "balanced"
    seed_everything(derive_seed(seed, "weights"))
    network = build_network(network_shape(settings), train.num_classes, settings.weights)
    module = DenseNetTraining(
        network,
        task=train.task,
        class_weight=(balanced_weights(train) if balanced else torch.ones(train.num_classes)).tolist(),
        augmentation=settings.augmentation,
        max_shift=settings.max_shift,
        crop_size=settings.input_size,
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        schedule=settings.schedule,
        plateau_factor=settings.plateau_factor,
        plateau_patience=settings.plateau_patience,
    )
    best = BestWeights(network, "val/loss")
    history = fit(
        module, data, context, network=network, callbacks=[EpochStream(seed), best], name=f"{name}.ckpt"
    )
    best.restore()
    context.require_finite(f"the classifier {name}", network.state_dict())
    return Fitted(network.eval().cpu(), best.value, best.epoch, history)


def images_digest(images: ImageSet) -> str:
    """SHA-256 of images and labels, to tell whether two classifiers were tested on the same ones."""
    digest = hashlib.sha256(repr((tuple(images.image.shape), images.classes, images.task)).encode())
    digest.update(images.image.contiguous().numpy().tobytes())
    digest.update(images.label.contiguous().numpy().tobytes())
    return digest.hexdigest()
