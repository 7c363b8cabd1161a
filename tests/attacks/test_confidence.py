"""The confidence attack in both readings, and its scores model by model."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedsynth.attacks.confidence import confidence_attack_auroc, confidence_attack_scores
from fedsynth.evaluation import EvaluationError


def answers(size: int, seed: int, models: int = 1, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(models, size, classes, generator=stream, dtype=torch.float64)
    return logits.softmax(dim=2), torch.randint(classes, (size,), generator=stream)


@pytest.mark.parametrize("classes", [2, 3])
def test_both_attacks_equal_scikit_learn_on_the_probabilities(classes: int) -> None:
    (inside, inside_label), (outside, outside_label) = answers(40, 0, 1, classes), answers(30, 1, 1, classes)
    found = confidence_attack_auroc(
        member_probability=inside[0],
        member_label=inside_label,
        non_member_probability=outside[0],
        non_member_label=outside_label,
    )
    probability, label = torch.cat([inside[0], outside[0]]), torch.cat([inside_label, outside_label])
    is_member = torch.arange(70) < 40
    assert found.max_probability == pytest.approx(roc_auc_score(is_member, probability.max(dim=1).values))
    true_class = probability[torch.arange(70), label]
    assert found.true_class == pytest.approx(roc_auc_score(is_member, true_class))


def test_a_sure_and_wrong_classifier_betrays_members_by_confidence_alone() -> None:
    sure_and_wrong = torch.tensor([[0.0, 1.0]] * 4, dtype=torch.float64)
    unsure = torch.full((5, 2), 0.5, dtype=torch.float64)
    found = confidence_attack_auroc(
        member_probability=sure_and_wrong,
        member_label=torch.zeros(4, dtype=torch.int64),
        non_member_probability=unsure,
        non_member_label=torch.zeros(5, dtype=torch.int64),
    )
    assert found == (1.0, 0.0)


def test_scores_give_the_aurocs_model_by_model() -> None:
    (inside, inside_label), (outside, outside_label) = answers(20, 2, 3), answers(25, 3, 3)
    high, low = (
        confidence_attack_scores(inside, inside_label),
        confidence_attack_scores(outside, outside_label),
    )
    is_member = torch.arange(45) < 20
    for model in range(3):
        wanted = confidence_attack_auroc(
            member_probability=inside[model],
            member_label=inside_label,
            non_member_probability=outside[model],
            non_member_label=outside_label,
        )
        for name, value in wanted._asdict().items():
            score = torch.cat([high[name][model], low[name][model]])
            assert roc_auc_score(is_member, score) == pytest.approx(value)


def test_logits_are_refused() -> None:
    label = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(EvaluationError, match="Apply softmax"):
        confidence_attack_auroc(
            member_probability=torch.randn(3, 2),
            member_label=label,
            non_member_probability=torch.full((3, 2), 0.5),
            non_member_label=label,
        )
