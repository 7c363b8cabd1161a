"""The pairs of every client, one loader a client."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedsynth.data.batches import tensor_loader
from fedsynth.data.paired import PairedClients, PairedSplit
from fedsynth.stages.multimodal.datamodule import ClientsData


class PairedClientsData(ClientsData):
    """Training pairs by client, and the global validation pairs.

    Args:
        pairs: All pairs.
        **options: See ``ClientsData``.
    """

    def __init__(self, pairs: PairedClients, **options: Any) -> None:
        super().__init__(
            columns(pairs.train),
            pairs.train.client,
            columns(pairs.val),
            make_loader=tensor_loader,
            **options,
        )


def columns(split: PairedSplit) -> dict[str, Tensor]:
    """What a batch holds."""
    return {"image": split.image, "ecg": split.ecg, "label": split.label}
