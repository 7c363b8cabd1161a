"""Softmax where it is confident, the nearest prototype where it is not: FedMPA, hybrid inference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.prototypes.prototype_record import ClassPrototypes
from fedsynth.records import InvalidTensorError, check_tensor

# Rows of a softmax in float32 over a few classes sum to 1 far better than this; logits do not.
_SUM_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class HybridPrediction:
    """Predicted classes, and who decided.

    Attributes:
        label: The class.
        rerouted: True where the prototypes decided, whether or not the softmax would have said the same.
    """

    label: Int64[Tensor, " n"]
    rerouted: Bool[Tensor, " n"]


def prototype_distances(
    embeddings: Mapping[str, Float[Tensor, "n dim"]],
    bank: ClassPrototypes,
    modality_weights: Mapping[str, float] | None = None,
) -> Float[Tensor, "n class"]:
    """Σ_m ω_m ‖z^m - P^m_c‖² of every record and class: FedMPA, prototype-margin rule.

    A class that the bank does not know in a modality that counts is infinitely far: with a term missing it would look
    nearer than the others.

    Args:
        embeddings: z^m by modality; all modalities must be present in every record.
        bank: P.
        modality_weights: ω_m ≥ 0; a modality that is not named has 0 and is not read. None: 1 for each.

    Returns:
        Squared distances in float64, on the device of the embeddings.

    Raises:
        ConfigError: For weights that are negative, not finite, all 0, or of a modality that the bank does not have.
        DataError: If a modality that counts has no embedding.
        InvalidTensorError: For NaN, or shapes that do not fit the bank.
    """
    weights = _checked_weights(bank, modality_weights)
    missing = sorted(weights.keys() - embeddings.keys())
    if missing:
        raise DataError(
            f"Distances need embeddings of {sorted(weights)}, but there are only those of {sorted(embeddings)}. "
            f"Give {missing} the weight 0 to leave them out."
        )
    first = check_tensor(embeddings[next(iter(weights))], "the first of embeddings", ndim=2)
    total = torch.zeros(len(first), bank.num_classes, dtype=torch.float64, device=first.device)
    for modality, weight in weights.items():
        prototype = bank.mean[modality]
        shape = (len(first), prototype.shape[1])
        z = check_tensor(embeddings[modality], f"embeddings[{modality!r}]", shape=shape).double()
        squared = (z.unsqueeze(1) - prototype.to(z.device).double()).square().sum(dim=-1)
        # fidelity: distance-modalities
        total += torch.where(bank.known(modality).to(z.device), weight * squared, math.inf)
    return total


def hybrid_prediction(
    probability: Float[Tensor, "n class"], distance: Shaped[Tensor, "n class"], threshold: float
) -> HybridPrediction:
    """argmax_c p_c where max_c p_c ≥ τ, else argmin_c of the distance: FedMPA, hybrid inference.

    τ = 0 leaves every record to the softmax, τ > 1 every record to the prototypes. Ties go to the lowest class, in both.
    max p = τ counts as confident; the two are compared in the dtype of the probabilities, so that 0.7 in float32 equals
    τ = 0.7. Where all distances are infinite (the bank knows no class) the softmax decides, and ``rerouted`` is False.

    Args:
        probability: Softmax outputs; rows sum to 1.
        distance: Of every class, ≥ 0; infinite for one that has no prototype.
        threshold: τ ≥ 0.

    Raises:
        ConfigError: If τ is negative or no finite number.
        InvalidTensorError: If rows are no probabilities, or distances are negative, NaN or of another shape.
    """
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not number or not 0 <= threshold < math.inf:
        raise ConfigError(
            f"threshold must be a finite number >= 0, got {threshold!r}. FedMPA uses 0.6; 0 is the softmax alone."
        )
    _check_probability(probability)
    if (
        not isinstance(distance, Tensor)
        or distance.shape != probability.shape
        or not bool((distance >= 0).all())
    ):
        got = (
            f"{tuple(distance.shape)}, smallest {distance.min()}"
            if isinstance(distance, Tensor)
            else "no tensor"
        )
        raise InvalidTensorError(
            f"distance must be >= 0 or inf, without NaN, of shape {tuple(probability.shape)}; got {got}."
        )
    confidence, by_softmax = probability.max(dim=1)
    nearest, by_prototype = distance.min(dim=1)
    # fidelity: hybrid-threshold
    rerouted = (confidence < threshold) & torch.isfinite(nearest)
    return HybridPrediction(label=torch.where(rerouted, by_prototype, by_softmax), rerouted=rerouted)


def _checked_weights(bank: ClassPrototypes, modality_weights: Mapping[str, float] | None) -> dict[str, float]:
    """ω_m of the modalities that count, > 0."""
    if modality_weights is None:
        return dict.fromkeys(bank.modalities, 1.0)
    unknown = sorted(modality_weights.keys() - set(bank.modalities))
    if unknown:
        raise ConfigError(
            f"modality_weights name {unknown}, but the prototypes are of {list(bank.modalities)}. Correct the name."
        )
    values = dict(modality_weights)
    if not all(0 <= weight < math.inf for weight in values.values()) or not any(values.values()):
        raise ConfigError(
            f"modality_weights must be finite numbers >= 0, not all of them 0, got {values}. "
            "Leave them out for the weight 1 on every modality."
        )
    return {modality: float(weight) for modality, weight in values.items() if weight > 0}


def _check_probability(probability: Tensor) -> None:
    check_tensor(probability, "probability", ndim=2)
    sums = probability.double().sum(dim=1)
    if (
        probability.shape[1] == 0
        or bool((probability < 0).any())
        or bool(((sums - 1).abs() > _SUM_TOLERANCE).any())
    ):
        raise InvalidTensorError(
            "Rows of probability must be >= 0 and sum to 1 over at least one class. Pass the softmax, not the logits."
        )
