"""Held-out pairs: those that choose weights and thresholds, and those that test them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor

from fedsynth.models.siamese import SiameseNetwork
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.reidentifier.augmentation import random_views
from fedsynth.stages.reidentifier.pairs import PairTable, draw_negatives, same_patient_pairs

PATIENT_PAIRS, VIEW_PAIRS = "patients", "views of one image"


@dataclass(frozen=True, eq=False)
class HeldOutPairs:
    """Pairs of images that took no part in training.

    Attributes:
        image: All images of the pairs.
        pair: Rows of ``image``.
        is_same: 1 for pairs of one person.
        label: Label of the first image.
        patient: Persons of both.
        kind: Whether pairs of one person are images of one patient, or views of one image.
        num_unmatched: Pairs of two persons whose class differs although matched ones were asked for.
    """

    image: UInt8[Tensor, "n 1 h w"]
    pair: Int64[Tensor, "pair 2"]
    is_same: Int64[Tensor, " pair"]
    label: Shaped[Tensor, "pair ..."]
    patient: Int64[Tensor, "pair 2"]
    kind: str
    num_unmatched: int

    @property
    def num_same(self) -> int:
        """Pairs of one person."""
        return int(self.is_same.sum())


def held_out_pairs(
    images: ImageSet,
    table: PairTable,
    *,
    negatives_per_positive: int,
    max_per_patient: int | None,
    matched: bool,
    views: float | None,
    generator: torch.Generator,
) -> HeldOutPairs:
    """Pairs of one person of a split, and for each so many of two with the same first image.

    Args:
        images, table: The split.
        negatives_per_positive: Pairs of two for each pair of one.
        max_per_patient: As in ``same_patient_pairs``.
        matched: As in ``draw_negatives``.
        views: None takes pairs of patients; a strength takes for each image a pair of itself and of a view of it.
        generator: Of all draws.
    """
    image, patient = images.image, table.patient
    if views is None:
        same = same_patient_pairs(table, max_per_patient=max_per_patient, generator=generator)
    else:
        pixels = random_views(images.image.float() / 255, views, generator)
        image = torch.cat([images.image, (pixels * 255).round().to(torch.uint8)])
        rows = torch.arange(len(images))
        same, patient = torch.stack([rows, rows + len(images)], 1), table.patient.repeat(2)
    anchor = same[:, 0].repeat_interleave(negatives_per_positive)
    drawn = draw_negatives(table, anchor, matched=matched, generator=generator)
    found = drawn.partner >= 0
    pair = torch.cat([same, torch.stack([anchor, drawn.partner], 1)[found]])
    return HeldOutPairs(
        image=image,
        pair=pair,
        is_same=torch.cat([torch.ones(len(same)), torch.zeros(int(found.sum()))]).long(),
        label=images.label[pair[:, 0]],
        patient=patient[pair],
        kind=PATIENT_PAIRS if views is None else VIEW_PAIRS,
        num_unmatched=drawn.num_unmatched,
    )


@torch.inference_mode()
def embed_images(
    network: SiameseNetwork, image: UInt8[Tensor, "n 1 h w"], batch_size: int = 256
) -> Float[Tensor, "n e"]:
    """Embeddings on the network's device, in evaluation mode: BatchNorm must not see which images come together."""
    was_training, device = network.training, network.scale.device
    network.eval()
    parts = [network(network.pixels(part.to(device))) for part in image.split(batch_size)]
    network.train(was_training)
    return torch.cat(parts) if parts else torch.empty(0, network.embedding.out_features, device=device)


@torch.inference_mode()
def pair_scores(network: SiameseNetwork, pairs: HeldOutPairs) -> Float[Tensor, " pair"]:
    """The head's score of every pair, before calibration."""
    used, row = pairs.pair.unique(return_inverse=True)
    embedding = embed_images(network, pairs.image[used])
    return network.score(embedding[row[:, 0]], embedding[row[:, 1]])
