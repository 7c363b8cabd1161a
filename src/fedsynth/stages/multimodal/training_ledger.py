"""What a training without DP-SGD published, for the ledger."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Int64
from torch import Tensor

from fedsynth.pipeline.stage import StageContext
from fedsynth.privacy import LedgerEntry
from fedsynth.stages.multimodal.class_counts import count_classes
from fedsynth.stages.multimodal.module import FUSED
from fedsynth.stages.multimodal.settings import TrainingSettings, published_in_training
from fedsynth.stages.multimodal.strategies import sharing_arguments
from fedsynth.stages.multimodal.training import Trained


class Labelled(Protocol):
    """Training records: who holds them, and their classes."""

    @property
    def label(self) -> Int64[Tensor, " n"]: ...

    @property
    def client(self) -> Int64[Tensor, " n"]: ...


def training_ledger(
    settings: TrainingSettings, trained: Trained, context: StageContext, records: Labelled
) -> list[LedgerEntry]:
    """One entry for what carries a guarantee, if anything does, and one with ε = ∞ for all the rest."""
    entries = []
    sent = published_in_training(settings)
    if settings.protects_prototypes:
        modalities = [name for name in trained.server["bank"] if name.startswith("mean/")]
        mechanism = sharing_arguments(settings, modalities or [FUSED], context)["mechanism"]
        by_client = count_classes(records.label, records.client)
        counts = [int(n) for client, held in by_client.items() if client is not None for n in held if n > 0]
        entries.append(mechanism.ledger_entry(context.name, counts, sent))
    if not settings.protects_prototypes or settings.shares_weights:
        entries.append(LedgerEntry.without_guarantee(stage=context.name, published=sent))
    return entries
