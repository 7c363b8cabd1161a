"""How much a client counts at the server, by how well its prototypes agree with the bank: FedMPA."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.prototypes.prototype_record import ClassPrototypes, check_alike
from fedsynth.records import check_tensor

Placement = Literal["outside", "inside"]


def mean_similarity(client: ClassPrototypes, bank: ClassPrototypes) -> float:
    """s_k, the mean of cos(p^m_{k,c}, P^m_c) over the pairs (m, c) that both know: FedMPA, similarity weighting.

    Pass the bank as it was before the round: the one after it contains the client's own prototypes. A cosine with a
    zero vector is 0. Without any pair known to both s_k is 0, neither near nor far. Before the first round there is no
    bank and so no similarity: strategies then weigh clients by their records.

    Returns:
        A number in [-1, 1], computed in float64.

    Raises:
        DataError: If the modalities, classes or dimensions differ.
    """
    check_alike(client, bank)
    cosines = []
    for modality in client.modalities:
        both = (client.known(modality).cpu() & bank.known(modality).cpu()).nonzero().flatten()
        own, theirs = client.mean[modality].cpu()[both].double(), bank.mean[modality].cpu()[both].double()
        lengths = own.norm(dim=1) * theirs.norm(dim=1)
        cosines.append((own * theirs).sum(dim=1) / torch.where(lengths > 0, lengths, 1.0))
    every = torch.cat(cosines).clamp(-1, 1)  # rounding may lead out of the interval
    # fidelity: client-similarity
    return float(every.mean()) if len(every) else 0.0


def similarity_weights(
    similarity: Float[Tensor, " client"], sensitivity: float, *, placement: Placement = "outside"
) -> Float[Tensor, " client"]:
    """a_k = softmax_k(δ softplus(s_k)): FedMPA, similarity weighting.

    With ``inside`` a_k = softmax_k(softplus(δ s_k)). As softplus(x) - softplus(-x) = x, the weights of two clients at
    s = 1 and s = -1 have the ratio exp(δ) either way.

    Args:
        similarity: s_k of every client.
        sensitivity: δ ≥ 0; 0 weighs all clients alike.
        placement: Where δ stands.

    Returns:
        Weights > 0 that sum to 1, in float64, on the device of ``similarity``.

    Raises:
        InvalidTensorError: If the similarities are not a finite floating vector.
        DataError: If there is no client.
        ConfigError: If δ is negative or not finite, or for an unknown placement.
    """
    if placement not in get_args(Placement):
        raise ConfigError(f"placement must be one of {get_args(Placement)}, got {placement!r}.")
    number = isinstance(sensitivity, int | float) and not isinstance(sensitivity, bool)
    if not number or not 0 <= sensitivity < math.inf:
        raise ConfigError(f"sensitivity must be a finite number >= 0, got {sensitivity!r}. FedMPA uses 2.0.")
    similarity = check_tensor(similarity, "similarity", ndim=1).double()
    if len(similarity) == 0:
        raise DataError("There are no clients to weigh.")
    # fidelity: sensitivity-placement
    if placement == "outside":
        return torch.softmax(sensitivity * _softplus(similarity), dim=0)
    return torch.softmax(_softplus(sensitivity * similarity), dim=0)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact at any size; torch's own is replaced by x from 20 on."""
    return torch.logaddexp(x, torch.zeros_like(x))
