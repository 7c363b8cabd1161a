"""Class prototypes of every modality and the server's bank of them: FedMPA, FedProto, FedGPD.

| symbol            | name             | shape                            |
|-------------------|------------------|----------------------------------|
| z^m               | embeddings       | [n dim] by modality m            |
| p^m_{k,c}, n_{k,c} | mean, count of a client | [class dim], [class] by modality |
| p̄^m_c            | pooled           | the same                         |
| P^m_c             | bank             | the same                         |

Nothing here is protected: a prototype of few records says much about each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.prototypes.prototype_record import ClassPrototypes, check_alike, check_labels, check_present
from fedsynth.records import InvalidTensorError, check_indices, check_tensor

__all__ = ["ClassPrototypes", "PrototypeSums", "Weighting", "pooled_prototypes", "update_bank"]

Weighting = Literal["count", "uniform"]


class PrototypeSums:
    """Streaming class means of embeddings: FedMPA, local prototypes p^m_{k,c} = mean of z^m_i over y_i = c.

    Sums are kept on the CPU in float64, so that the result does not depend on the batches (up to one rounding to
    float32). Call it with the model in eval mode.

    Args:
        num_classes: C; classes without any record get mean 0 and count 0.

    Raises:
        ConfigError: If the number of classes is no integer ≥ 1.
    """

    def __init__(self, num_classes: int) -> None:
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
            raise ConfigError(f"num_classes must be an integer >= 1, got {num_classes!r}.")
        self.num_classes = num_classes
        self._sums: dict[str, Float[Tensor, "class dim"]] = {}
        self._counts: dict[str, Int64[Tensor, " class"]] = {}

    @torch.no_grad()
    def add(
        self,
        embeddings: Mapping[str, Float[Tensor, "b dim"]],
        label: Int64[Tensor, " b"],
        present: Mapping[str, Bool[Tensor, " b"]] | None = None,
    ) -> None:
        """Add a batch. Either all of it is added or, on an error, nothing.

        Args:
            embeddings: z^m by modality; every batch must bring the same ones.
            label: Class of each record.
            present: False where a record lacks a modality: its embedding there is not read. A modality that is not
                named, and every one when None, is present in all records.

        Raises:
            InvalidTensorError: For wrong shapes, dtypes or labels, or NaN in an embedding that counts.
            DataError: If the modalities are not those of the first batch, or ``present`` names another one.
        """
        masks = {} if present is None else dict(present)
        expected = self._sums.keys() or embeddings.keys()
        if not embeddings or embeddings.keys() != expected or not masks.keys() <= embeddings.keys():
            raise DataError(
                f"A batch brings embeddings of {sorted(embeddings)} and masks of {sorted(masks)}; expected embeddings "
                f"of {sorted(expected) or 'at least one modality'} and masks of no others."
            )
        check_indices(label=label)
        check_labels(label, self.num_classes)
        batch = {m: self._batch_sums(m, z, label, masks.get(m)) for m, z in embeddings.items()}
        for modality, (total, count) in batch.items():
            self._sums[modality] = self._sums.get(modality, 0) + total
            self._counts[modality] = self._counts.get(modality, 0) + count

    def prototypes(self) -> ClassPrototypes:
        """The means of all records added so far.

        Raises:
            DataError: If no batch was added: not even the modalities are known then.
        """
        if not self._sums:
            raise DataError(
                "There are no prototypes before the first batch. Check the partition for empty clients."
            )
        return ClassPrototypes(
            mean={m: _divide(total, self._counts[m]).float() for m, total in self._sums.items()},
            count={m: count.clone() for m, count in self._counts.items()},
        )

    def _batch_sums(
        self, modality: str, embedding: Tensor, label: Tensor, mask: Tensor | None
    ) -> tuple[Float[Tensor, "class dim"], Int64[Tensor, " class"]]:
        name = f"embeddings[{modality!r}]"
        if not isinstance(embedding, Tensor) or embedding.ndim != 2 or len(embedding) != len(label):
            shape = tuple(embedding.shape) if isinstance(embedding, Tensor) else type(embedding).__name__
            raise InvalidTensorError(f"{name} must be a tensor [{len(label)}, dim] like label, got {shape}.")
        rows, classes = embedding.cpu(), label.cpu()
        if mask is not None:
            check_present(mask, len(label), f"present[{modality!r}]")
            rows, classes = rows[mask.cpu()], classes[mask.cpu()]
        check_tensor(rows, name)
        known = self._sums.get(modality)
        if known is not None and known.shape[1] != rows.shape[1]:
            raise InvalidTensorError(
                f"{name} has {rows.shape[1]} dimensions, the batches before had {known.shape[1]}."
            )
        zeros = torch.zeros(self.num_classes, rows.shape[1], dtype=torch.float64)
        return zeros.index_add(0, classes, rows.double()), torch.bincount(classes, minlength=self.num_classes)


def pooled_prototypes(clients: Sequence[ClassPrototypes], weighting: Weighting) -> ClassPrototypes:
    """p̄^m_c, the average of the clients' prototypes: FedMPA, bank update; FedProto and FedGPD alike.

    A client without records of a class takes no part in it. With ``count`` p̄ = Σ_k n_{k,c} p_{k,c} / Σ_k n_{k,c}, which
    is the mean over all records of all clients; with ``uniform`` every client that has the class weighs the same.

    Returns:
        Means summed in float64 in the order given; counts are the sums of the clients' counts either way.

    Raises:
        ConfigError: For an unknown weighting.
        DataError: If there is no client, or their modalities, classes or dimensions differ.
    """
    if weighting not in get_args(Weighting):
        raise ConfigError(f"weighting must be one of {get_args(Weighting)}, got {weighting!r}.")
    if not clients:
        raise DataError("There are no clients to pool prototypes of.")
    for client in clients[1:]:
        check_alike(clients[0], client)
    mean, count = {}, {}
    for modality in clients[0].modalities:
        counts = torch.stack([client.count[modality] for client in clients])  # [client, class]
        means = torch.stack([client.mean[modality] for client in clients]).double()
        # fidelity: prototype-pooling
        weight = counts if weighting == "count" else (counts > 0).long()
        total = (weight.unsqueeze(-1) * means).sum(dim=0)
        mean[modality] = _divide(total, weight.sum(dim=0)).float()
        count[modality] = counts.sum(dim=0)
    return ClassPrototypes(mean=mean, count=count)


def update_bank(bank: ClassPrototypes | None, pooled: ClassPrototypes, momentum: float) -> ClassPrototypes:
    """The server's bank after a round, P ← γ P + (1 - γ) p̄: FedMPA, bank update.

    A class the bank does not know yet, and every one when there is no bank, starts at p̄. A class that no client has
    in this round keeps its P. Counts are those of the last round in which the class was there.

    Args:
        bank: P before the round; None before the first.
        pooled: p̄ of the round.
        momentum: γ in [0, 1]; 0 forgets the old bank, 1 never moves.

    Raises:
        ConfigError: If the momentum lies outside [0, 1].
        DataError: If the modalities, classes or dimensions differ.
    """
    if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0 <= momentum <= 1:
        raise ConfigError(
            f"momentum of the prototype bank must lie in [0, 1], got {momentum!r}. "
            "0.9 keeps nine tenths of the old bank."
        )
    if bank is None:
        return pooled  # fidelity: bank-start
    check_alike(bank, pooled)
    mean, count = {}, {}
    for modality in bank.modalities:
        new, both = pooled.known(modality), bank.known(modality) & pooled.known(modality)
        old_mean, new_mean = bank.mean[modality].double(), pooled.mean[modality].double()
        mixed = momentum * old_mean + (1 - momentum) * new_mean
        start_or_stay = torch.where(new.unsqueeze(-1), new_mean, old_mean)
        mean[modality] = torch.where(both.unsqueeze(-1), mixed, start_or_stay).float()
        count[modality] = torch.where(new, pooled.count[modality], bank.count[modality])
    return ClassPrototypes(mean=mean, count=count)


def _divide(total: Float[Tensor, "class dim"], weight: Int64[Tensor, " class"]) -> Float[Tensor, "class dim"]:
    """total / weight, 0 where the weight is 0 (the total is 0 there)."""
    return total / weight.clamp_min(1).unsqueeze(-1)
