"""The stored answers of a system: ``scores.safetensors`` of ``privacy_performance``, written and read here only.

``<split>.label``, ``.participant``, ``.client`` and ``.probability`` [model, n, class] of train, val and test,
``test.prediction`` [model, n] and, where prototypes decide, ``test.rerouted``. One row a participant; where
participants have several records, the same under ``segment/`` with one row a record.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedsynth.attacks.confidence import confidence_attack_scores
from fedsynth.evaluation.scored_system import SPLITS, ScoredSplit, ScoredSystem
from fedsynth.stages.privacy_performance.decisions import AnsweredSplit, decide
from fedsynth.stages.privacy_performance.spec import PrivacyPerformanceSettings

SCORES = "scores.safetensors"


def score_tensors(
    answers: Mapping[str, AnsweredSplit], settings: PrivacyPerformanceSettings
) -> dict[str, Tensor]:
    """What is stored of one level, participants or segments."""
    tensors = {
        f"{split}.{name}": getattr(answers[split], name)
        for split in SPLITS
        for name in ("label", "participant", "client", "probability")
    }
    tensors["test.prediction"], rerouted = decide(answers["test"], settings)
    return tensors if rerouted is None else {**tensors, "test.rerouted": rerouted}


def scored_system(tensors: Mapping[str, Tensor]) -> ScoredSystem:
    """The system behind `score_tensors`; attack scores always come from the softmax.

    Raises:
        EvaluationError: Tensors that do not fit together.
    """
    splits = {}
    for split in SPLITS:
        label = tensors[f"{split}.label"]
        scores = confidence_attack_scores(tensors[f"{split}.probability"], label)
        splits[split] = ScoredSplit(
            tensors[f"{split}.participant"], label, tensors[f"{split}.client"], scores
        )
    return ScoredSystem(
        **splits, prediction=tensors["test.prediction"], rerouted=tensors.get("test.rerouted")
    )
