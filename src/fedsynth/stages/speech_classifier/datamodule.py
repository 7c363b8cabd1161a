"""The segments of every client, one loader a client, batches of similar length."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedsynth.data.length_buckets import bucketed_loader
from fedsynth.data.speech import SpeechClients, SpeechSplit
from fedsynth.stages.multimodal.datamodule import ClientsData

COLUMNS = ("audio", "audio_length", "text", "text_length", "label", "participant")


class SpeechClientsData(ClientsData):
    """Training segments by client, and the global validation segments.

    Args:
        clients: All segments.
        **options: See ``ClientsData``.
    """

    def __init__(self, clients: SpeechClients, **options: Any) -> None:
        super().__init__(
            columns(clients.train),
            clients.train.client,
            columns(clients.val),
            make_loader=bucketed_loader,
            **options,
        )


def columns(split: SpeechSplit) -> dict[str, Tensor]:
    """What a batch holds."""
    return {name: getattr(split, name) for name in COLUMNS}
