"""From a classifier's outputs to decisions: pooling of segments, softmax, prototypes or both (FedMPA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedsynth.evaluation.participant_bootstrap import participant_constant, participant_means
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.prototypes.hybrid_inference import hybrid_prediction, prototype_distances
from fedsynth.stages.privacy_performance.spec import PrivacyPerformanceSettings

if TYPE_CHECKING:
    from fedsynth.stages.multimodal.trained import SplitOutputs

#: Above every probability: the prototypes decide on every record.
ALWAYS_PROTOTYPES = 2.0


@dataclass(frozen=True)
class AnsweredSplit:
    """What a classifier says of the records of a split, or of its participants.

    Attributes:
        probability: Softmax of every model, float64: in float32 confident records would tie at 1.
        distance: Σ_m ‖z^m - P^m_c‖² to the prototypes of every class; None without prototypes.
        label, participant, client: Of every record.
    """

    probability: Float[Tensor, "model n class"]
    distance: Float[Tensor, "model n class"] | None
    label: Int[Tensor, " n"]
    participant: Int[Tensor, " n"]
    client: Int[Tensor, " n"]

    @classmethod
    def of(
        cls, outputs: SplitOutputs, bank: ClassPrototypes | None, modalities: Sequence[str] | None = None
    ) -> AnsweredSplit:
        """The answers in a classifier's outputs.

        Args:
            outputs: Of one split.
            bank: The server's prototypes, if they are to be asked.
            modalities: Those whose distances count, with equal weights; None for all.
        """
        distance = None
        if bank is not None:
            weights = None if modalities is None else dict.fromkeys(modalities, 1.0)
            distance = torch.stack(
                [
                    prototype_distances(
                        {name: z[model] for name, z in outputs.embeddings.items()}, bank, weights
                    )
                    for model in range(len(outputs.logits))
                ]
            )
        probability = outputs.logits.double().softmax(dim=2)
        return cls(probability, distance, outputs.label, outputs.group, outputs.client)

    @property
    def has_segments(self) -> bool:
        """Whether some participant has several records."""
        return len(self.participant.unique()) < len(self.participant)

    def by_participant(self) -> AnsweredSplit:
        """Means over the records of each participant, participants in ascending order of their numbers.

        The nearest prototype of the mean distance is that of the mean embedding: the two distances differ by the
        variance of the participant's embeddings, which is the same for every class.

        Raises:
            EvaluationError: A participant with several labels or clients.
        """
        # fidelity: participant-pooling
        whom = self.participant
        return AnsweredSplit(
            participant_means(self.probability, whom),
            None if self.distance is None else participant_means(self.distance, whom),
            participant_constant(self.label, whom, "label"),
            whom.unique(sorted=True),
            participant_constant(self.client, whom, "client"),
        )


def decide(
    answers: AnsweredSplit, settings: PrivacyPerformanceSettings
) -> tuple[Int[Tensor, "model n"], Bool[Tensor, "model n"] | None]:
    """Class of every record by every model, and which records the prototypes decided; None for the softmax alone."""
    if answers.distance is None:
        return answers.probability.argmax(dim=2), None
    threshold = settings.confidence_threshold if settings.inference == "hybrid" else ALWAYS_PROTOTYPES
    found = [
        hybrid_prediction(probability, distance, threshold)
        for probability, distance in zip(answers.probability, answers.distance, strict=True)
    ]
    return torch.stack([one.label for one in found]), torch.stack([one.rerouted for one in found])
