"""What leaves the client, and what of the same set stays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import StageContext
from fedsynth.seeding import generator
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet
from fedsynth.stages.select_images.emission import Emission
from fedsynth.stages.select_images.rounds import Round
from fedsynth.stages.select_images.scoring import CandidateScorer
from fedsynth.stages.select_images.spec import SOFT, SelectImagesSettings
from fedsynth.stages.tstr_densenet.trained import open_densenet

#: What may leave; all other tensors of the set are private.
PUBLIC = ("train.image", "train.label", "train.soft_label")
#: Training images whose content decides the order: more would only take time.
MAX_HASHED = 1_000


def released_set(
    settings: SelectImagesSettings,
    rounds: Sequence[Round],
    emitted: Emission,
    scorer: CandidateScorer,
    images: ImageSet,
    inputs: Mapping[str, Artifact],
) -> ImageSet:
    """The images of the emitted candidates with the labels of their sources and, if asked for, what C_r says of them."""
    picture = torch.empty(len(emitted), *images.image.shape[1:], dtype=torch.uint8)
    for number, one in enumerate(rounds):
        entries = (emitted.round == number).nonzero()[:, 0]
        if len(entries):
            latent = one.latents(emitted.position[entries], emitted.candidate[entries])
            picture[entries] = scorer.pictures(latent)
    soft = soft_labels(inputs["classifier"], picture, scorer) if settings.labels == SOFT else None
    return ImageSet(
        image=picture,
        label=images.label[emitted.source],
        classes=images.classes,
        task=images.task,
        source=emitted.source,
        guidance=emitted.weight,
        soft_label=soft,
    )


# fidelity: released-labels
def soft_labels(
    classifier: Artifact, picture: UInt8[Tensor, "m c h w"], scorer: CandidateScorer
) -> Float[Tensor, "m k"]:
    """Probabilities of the classes, averaged over the C_r of every seed that its stage trained.

    One C_r ranks candidates, but as a teacher a single one passes on what its own seed got wrong. Each sees the whole
    image, one view, as in the ranking.

    Args:
        classifier: Of the stage that trained C_r.
        picture: Released images.
        scorer: Where and in which batches is computed.
    """
    seeds = classifier.manifest["settings"]["seeds"]
    answers = [scorer.answers_of(open_densenet(classifier, scorer.device, seed), picture) for seed in seeds]
    return torch.stack(answers).mean(0)


def release_order(images: ImageSet, num: int, seed: int) -> Int64[Tensor, " m"]:
    """An order of the released images that says nothing of the rows of their sources.

    In the order of the sources, neighbors would be of one patient. The stream depends on the private images, since seed
    and settings are no secret; whoever has those images can tell the order, and needs it no more.

    Args:
        images: The training images.
        num: Of released images.
        seed: Of the stage.
    """
    content = images.image[:MAX_HASHED].contiguous().numpy().tobytes()
    secret = hashlib.sha256(content).hexdigest()
    return torch.randperm(num, generator=generator(seed, "select_images", "release order", secret))


def save_released(made: ImageSet, context: StageContext) -> None:
    """Images, labels and soft labels for everybody; source and guidance weight of each for clients and auditors."""
    tensors = made.to_tensors()
    context.save(IMAGES_FILE, {name: tensors[name] for name in PUBLIC if name in tensors})
    context.save_private(IMAGES_FILE, {name: tensors[name] for name in tensors if name not in PUBLIC})
