"""What a client minimizes besides its cross-entropy: FedMPA (pull, repulsion), FedProto (pull), FedGPD (distillation).

Every term is of one modality and is differentiable in the embedding; prototypes are constants (detached). A term is the
mean over the records that count, which is (1/B) Σ_i when all of them do. A batch in which none counts gives an exact 0
with a zero gradient. Embeddings that do not count are not read, so they may hold anything.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from fedsynth.errors import ConfigError, DataError
from fedsynth.prototypes.prototype_record import check_labels, check_present
from fedsynth.records import InvalidTensorError, check_indices

RepulsionForm = Literal["hinge", "inverse", "gaussian"]


def class_weights(count: Int64[Tensor, " class"]) -> Float[Tensor, " class"]:
    """w_c = n / (C n_c) from a client's own counts: FedMPA, weighted cross-entropy.

    C counts all classes, absent ones too. A class the client has no record of gets the neutral weight 1: no training
    record of the client carries it, and wherever it does turn up (validation) it must neither vanish nor be infinite.

    Returns:
        Weights in float32; Σ_c n_c w_c = n times the share of classes that are present.

    Raises:
        InvalidTensorError: If the counts are no one-dimensional int64 tensor.
        DataError: If a count is negative or all are 0.
    """
    check_indices(count=count)
    if count.numel() == 0 or bool((count < 0).any()) or not bool((count > 0).any()):
        raise DataError(
            f"Class weights need counts >= 0 with at least one record, got {count.tolist()}. "
            "Check the partition for empty clients."
        )
    # fidelity: class-weight-of-absent
    balanced = count.sum().double() / (len(count) * count.clamp_min(1).double())
    return torch.where(count > 0, balanced, 1.0).float()


def weighted_cross_entropy(
    logits: Float[Tensor, "b class"], label: Int64[Tensor, " b"], class_weight: Float[Tensor, " class"]
) -> Float[Tensor, ""]:
    """-(1/B) Σ_i w_{y_i} log softmax(logits_i)_{y_i}: FedMPA, weighted cross-entropy.

    Divided by B, where ``torch.nn.functional.cross_entropy`` divides by Σ_i w_{y_i}: the gradient of a record does not
    depend on which others share its batch. An empty batch gives 0.

    Raises:
        InvalidTensorError: For inconsistent shapes or labels out of range.
    """
    if logits.ndim != 2 or class_weight.shape != logits.shape[1:]:
        raise InvalidTensorError(
            f"logits must be [b, class] and class_weight [class], got {tuple(logits.shape)} and "
            f"{tuple(class_weight.shape)}."
        )
    _check_batch(label, len(logits), logits.shape[1])
    weight = class_weight.to(logits)
    return F.cross_entropy(logits, label, weight=weight, reduction="sum") / max(len(label), 1)


def pull_loss(
    embedding: Float[Tensor, "b dim"],
    label: Int64[Tensor, " b"],
    prototype: Float[Tensor, "class dim"],
    known: Bool[Tensor, " class"],
    present: Bool[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Mean of ‖z_i - P_{y_i}‖²: FedMPA, prototype pull; FedProto's regularizer.

    The squared norm sums over dimensions. A record counts if its modality is present and its class known.

    Raises:
        InvalidTensorError: For inconsistent shapes or labels out of range.
    """
    # fidelity: pull-mean
    embedding, target, counted = _own_class(embedding, label, prototype, known, present)
    # Choosing, unlike multiplying by a mask, keeps NaN of records that do not count out of value and gradient.
    difference = torch.where(counted.unsqueeze(1), embedding - target, 0.0)
    return difference.square().sum() / counted.sum().clamp_min(1)


def repulsion_loss(
    embedding: Float[Tensor, "b dim"],
    label: Int64[Tensor, " b"],
    prototype: Float[Tensor, "class dim"],
    known: Bool[Tensor, " class"],
    present: Bool[Tensor, " b"] | None = None,
    *,
    form: RepulsionForm = "hinge",
    margin: float = 1.0,
) -> Float[Tensor, ""]:
    """Mean of Σ_{c ≠ y_i} φ(z_i, P_c), the closeness to the other known classes: FedMPA, repulsion.

    | form       | φ                                                  |
    |------------|----------------------------------------------------|
    | `hinge`    | max(0, μ - ‖ẑ - P̂_c‖)², ẑ and P̂ of length 1      |
    | `inverse`  | 1 / (1 + ‖z - P_c‖²)                               |
    | `gaussian` | exp(-‖z - P_c‖²); vanishes at distances of several units |

    A record counts if its modality is present and some other class known; its own class need not be. Where the
    direction of the gradient is undefined it is 0: at ẑ = P̂_c (the peak of the hinge) and at z = 0, which has no
    direction and stays the zero vector.

    Args:
        embedding: z.
        label: y.
        prototype: P.
        known: Which prototypes exist.
        present: False where the record lacks the modality.
        form: φ.
        margin: μ > 0 of the hinge, in chord length: 1 is an angle of 60°, and two directions are at most 2 apart.

    Raises:
        ConfigError: For an unknown form or a margin that is not a finite number > 0.
        InvalidTensorError: For inconsistent shapes or labels out of range.
    """
    if form not in get_args(RepulsionForm):
        raise ConfigError(f"form of the repulsion must be one of {get_args(RepulsionForm)}, got {form!r}.")
    _check_positive("margin", margin, "1.0 asks for 60 degrees between classes.")
    embedding, prototype = _check_inputs(embedding, label, prototype, known, present)
    # Which prototypes are a record's wrong ones, [b, class].
    wrong = known & (label.unsqueeze(1) != torch.arange(len(prototype), device=label.device))
    if present is not None:
        wrong = wrong & present.unsqueeze(1)
    counted = wrong.any(dim=1)
    rows = torch.where(counted.unsqueeze(1), embedding, 0.0)
    # fidelity: repulsion-form
    if form == "hinge":
        closeness = (margin - _distances(_unit(rows), _unit(prototype))).clamp_min(0).square()
    else:
        squared = _distances(rows, prototype).square()
        closeness = 1 / (1 + squared) if form == "inverse" else torch.exp(-squared)
    return torch.where(wrong, closeness, 0.0).sum() / counted.sum().clamp_min(1)


def distillation_loss(
    embedding: Float[Tensor, "b dim"],
    label: Int64[Tensor, " b"],
    prototype: Float[Tensor, "class dim"],
    known: Bool[Tensor, " class"],
    present: Bool[Tensor, " b"] | None = None,
    *,
    temperature: float,
) -> Float[Tensor, ""]:
    """Mean of -Σ_j softmax(P_{y_i}/T)_j log softmax(z_i/T)_j, j over dimensions: FedGPD, prototype distillation.

    Smallest where z_i equals P_{y_i} up to a constant; its value there is the entropy of the target, not 0. A record
    counts if its modality is present and its class known.

    Raises:
        ConfigError: If the temperature is not a finite number > 0.
        InvalidTensorError: For inconsistent shapes or labels out of range.
    """
    _check_positive("temperature", temperature, "FedGPD uses 2.0.")
    # fidelity: distillation-unit
    embedding, target, counted = _own_class(embedding, label, prototype, known, present)
    rows = torch.where(counted.unsqueeze(1), embedding, 0.0)
    log_share = F.log_softmax(rows / temperature, dim=1)
    entropy = -(F.softmax(target / temperature, dim=1) * log_share).sum(dim=1)
    return torch.where(counted, entropy, 0.0).sum() / counted.sum().clamp_min(1)


def _own_class(
    embedding: Tensor, label: Tensor, prototype: Tensor, known: Tensor, present: Tensor | None
) -> tuple[Float[Tensor, "b dim"], Float[Tensor, "b dim"], Bool[Tensor, " b"]]:
    """Embeddings, the prototype of the class of each, and which records count."""
    embedding, prototype = _check_inputs(embedding, label, prototype, known, present)
    counted = known[label] if present is None else known[label] & present
    return embedding, prototype[label], counted


def _distances(
    rows: Float[Tensor, "b dim"], prototype: Float[Tensor, "class dim"]
) -> Float[Tensor, "b class"]:
    """‖z_i - P_c‖, with derivative 0 where it is 0 (so does torch)."""
    # Differences, not ‖a‖² + ‖b‖² - 2ab: nothing cancels next to a prototype.
    return torch.linalg.vector_norm(rows.unsqueeze(1) - prototype, dim=-1)


def _unit(vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
    """Vectors of length 1; a zero vector stays zero, with derivative 0."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / torch.where(length > 0, length, math.inf)


def _check_inputs(
    embedding: Tensor, label: Tensor, prototype: Tensor, known: Tensor, present: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Embedding and detached prototype in the wider dtype of the two, after checks of shape."""
    if embedding.ndim != 2 or prototype.ndim != 2 or embedding.shape[1] != prototype.shape[1]:
        raise InvalidTensorError(
            f"embedding must be [b, dim] and prototype [class, dim] of one dim, got {tuple(embedding.shape)} and "
            f"{tuple(prototype.shape)}."
        )
    _check_batch(label, len(embedding), len(prototype))
    check_present(known, len(prototype), "known")
    if present is not None:
        check_present(present, len(embedding))
    dtype = torch.promote_types(embedding.dtype, prototype.dtype)
    return embedding.to(dtype), prototype.detach().to(dtype)


def _check_batch(label: Tensor, num_records: int, num_classes: int) -> None:
    check_indices(label=label)
    if len(label) != num_records:
        raise InvalidTensorError(f"One label per record is needed, got {len(label)} for {num_records}.")
    check_labels(label, num_classes)


def _check_positive(name: str, value: object, advice: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a finite number > 0, got {value!r}. {advice}")
