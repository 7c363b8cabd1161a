"""Re-identification of released images: against their own source, and (T5) against all training images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.attacks.largest_similarity import compare_largest_similarity, largest_pair_similarity
from fedsynth.attacks.reidentification import OperatingPoint, operating_point
from fedsynth.attacks.residual_risk import wilson_proportion
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import StageContext
from fedsynth.seeding import generator
from fedsynth.stages.audit_images.matched_pairs import same_label_pairs
from fedsynth.stages.audit_images.records import AuditRecords
from fedsynth.stages.audit_images.spaces import Space, make_space
from fedsynth.stages.audit_images.spec import AuditImagesSettings
from fedsynth.stages.audit_images.table import Row, proportion_row
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.out_of_memory import with_smaller_batches
from fedsynth.stages.reidentifier.trained import open_reidentifier

SPACE = "reidentifier"
CALIBRATION_FILE = "calibration.safetensors"


class Reidentifier(Protocol):
    """P(x, x') of two images, from one embedding each."""

    def embed(self, image: Tensor, batch_size: int) -> Float[Tensor, "n e"]:
        """Embeddings."""

    def probability(self, first: Float[Tensor, "n e"], second: Float[Tensor, "n e"]) -> Float[Tensor, " n"]:
        """Of each pair, that it shows one person."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """The images of the audit, embedded by a re-identification network.

    Attributes:
        network: The network, on ``device``.
        device: Where it computes; embeddings and results are on the CPU.
        point: Its threshold, with the error rates it has on held-out pairs of real images.
        space: The embeddings.
    """

    network: Reidentifier
    device: torch.device
    point: OperatingPoint
    space: Space

    def probability(self, first: Float[Tensor, "n e"], second: Float[Tensor, "n e"]) -> Float[Tensor, " n"]:
        """P(x, x') of each pair."""
        return self.network.probability(first.to(self.device), second.to(self.device)).cpu()


def embed(
    records: AuditRecords,
    settings: AuditImagesSettings,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> Embedded:
    """Embed every image once."""
    artifact = inputs["reidentifier"]
    device = computing_device(context)
    network = open_reidentifier(artifact, device=device)
    pairs = artifact.load(CALIBRATION_FILE)
    rule: Any = settings.threshold_rule
    point = operating_point(pairs["probability"], pairs["is_same"], rule, settings.threshold_value)

    def embedded(image: Tensor) -> Tensor:
        key = f"stages.{context.name}.batch_size"
        found, _ = with_smaller_batches(lambda size: network.embed(image, size), settings.batch_size, key)
        return found.float().cpu()

    space = make_space(
        SPACE,
        records,
        {split: embedded(images.image) for split, images in records.real.items()},
        embedded(records.released.image),
        None if records.independent is None else embedded(records.independent.image),
    )
    return Embedded(network, device, point, space)


def reidentification(
    embedded: Embedded, records: AuditRecords, settings: AuditImagesSettings
) -> tuple[list[Row], dict[str, Any], dict[str, Tensor]]:
    """Rows of the table, the threshold for the notes, and largest similarities.

    A pair threshold is applied to pairs only: against all training images every image exceeds it, released or not.
    """
    rows = list(_pair_rates(embedded, records, settings))
    largest = {
        name: _largest(embedded, points)
        for name, points in (
            ("released", embedded.space.released),
            ("held_out", torch.cat([embedded.space.negative, embedded.space.control])),
        )
    }
    compared = compare_largest_similarity(
        largest["released"],
        largest["held_out"],
        level=settings.similarity_level,
        confidence=settings.confidence,
    )
    rows.append(
        proportion_row(
            compared.exceeding,
            test="T5",
            space=SPACE,
            quantity="released images more similar to some training image than real images of other people are",
            chance=compared.expected_share,
            note=(
                f"largest of {len(records.train_rows)} similarities above {compared.threshold:.3g}; medians "
                f"{compared.median_released:.3g} released, {compared.median_held_out:.3g} held out"
            ),
            metric="reid/largest_similarity_exceeding",
        )
    )
    rows.append(
        Row("T5", SPACE, "AUROC of released against held-out images by largest similarity", compared.auroc, None, None,
            0.5, "above 0.5: released images are closer", "reid/largest_similarity_auroc")
    )  # fmt: skip
    point = embedded.point
    threshold = {
        "rule": point.rule,
        "value": point.value,
        "threshold": point.threshold,
        "fpr": point.fpr.share,
        "fnr": point.fnr.share,
    }
    return rows, threshold, {f"{SPACE}/{name}.largest_similarity": values for name, values in largest.items()}


def _pair_rates(embedded: Embedded, records: AuditRecords, settings: AuditImagesSettings) -> Iterator[Row]:
    """Share of released images flagged with their own source, and of other people with an image of their class."""
    space = embedded.space
    if records.source is not None:
        yield _pair_rate(
            embedded,
            space.released,
            records.source,
            settings.confidence,
            test="re-identification",
            quantity="released images flagged with their own source",
            metric="reid/source_rate",
        )
    # The rate of false alarms beside it is one of pairs with the same labels.
    rows, partner = same_label_pairs(
        records.held_out_labels(records.negative),
        records.real["train"].label[records.train_rows],
        generator(settings.seed, "audit", "pairs"),
    )
    if len(rows) == 0:
        return
    yield _pair_rate(
        embedded,
        space.negative[rows],
        partner,
        settings.confidence,
        test="T4",
        quantity="real images of other people flagged with a random training image of the same labels",
        metric="control/negative/reid/source_rate",
    )


def _pair_rate(
    embedded: Embedded, points: Tensor, source: Tensor, confidence: float, **described: str
) -> Row:
    point = embedded.point
    probability = embedded.probability(points, embedded.space.train[source])
    flagged = int((probability > point.threshold).sum())
    return proportion_row(
        wilson_proportion(flagged, len(points), confidence=confidence),
        space=SPACE,
        chance=point.fpr.share,
        note=(
            f"{len(points)} pairs; P > {point.threshold:.3g} (rule {point.rule}); on held-out pairs that flags "
            f"{point.fpr.share:.3g} of two "
            f"people and misses {point.fnr.share:.3g} of one. 0 by construction where the same network and threshold "
            "made the selection"
        ),
        **described,
    )


def _largest(embedded: Embedded, query: Float[Tensor, "m e"]) -> Float[Tensor, " m"]:
    def every_pair(first: Tensor, second: Tensor) -> Tensor:
        left = first.repeat_interleave(len(second), dim=0)
        return embedded.probability(left, second.repeat(len(first), 1)).view(len(first), len(second))

    return largest_pair_similarity(query, embedded.space.train, every_pair).value
