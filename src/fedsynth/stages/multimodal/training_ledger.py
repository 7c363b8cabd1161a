"""What a training without DP-SGD published, for the ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from jaxtyping import Int64
from torch import Tensor

from fedsynth.pipeline.stage import StageContext
from fedsynth.privacy import LedgerEntry
from fedsynth.privacy.prototype_ledger import ENCODERS
from fedsynth.stages.multimodal.class_counts import count_classes
from fedsynth.stages.multimodal.settings import (
    TrainingSettings,
    chosen_on_validation,
    published_in_training,
    training_price,
)
from fedsynth.stages.multimodal.strategies import sharing_arguments


class Labelled(Protocol):
    """Training records: who holds them, and their classes."""

    @property
    def label(self) -> Int64[Tensor, " n"]: ...

    @property
    def client(self) -> Int64[Tensor, " n"]: ...


def training_ledger(
    settings: TrainingSettings, modalities: Sequence[str], context: StageContext, records: Labelled
) -> list[LedgerEntry]:
    """One entry for what carries a guarantee, if anything does, and one with ε = ∞ for all the rest.

    To be asked before training: it refuses a mechanism that would leave nothing to send.

    Args:
        settings: Of the stage.
        modalities: The embeddings that clients make prototypes of, see ``shared_modalities``.
        context: Of the stage.
        records: Training records, counted only.

    Raises:
        PrivacyParameterError: If no client has enough records of any class.
    """
    entries = []
    sent = published_in_training(settings)
    if settings.protects_prototypes:
        mechanism = sharing_arguments(settings, modalities, context)["mechanism"]
        by_client = count_classes(records.label, records.client)
        counts = [int(n) for client, held in by_client.items() if client is not None for n in held if n > 0]
        chosen = chosen_on_validation(settings)
        entries.append(mechanism.ledger_entry(context.name, counts, (*sent, *chosen)))
    price = training_price(settings)
    if price is None or math.isinf(price[0]):  # as the plan says
        given = (ENCODERS,) if settings.protects_prototypes and not settings.shares_weights else ()
        entries.append(LedgerEntry.without_guarantee(stage=context.name, published=(*given, *sent)))
    return entries
