"""Output-based membership attacks: the two-class tie, closed forms, scikit-learn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedsynth.attacks import membership_attack
from fedsynth.attacks.membership import entropy_score
from fedsynth.evaluation import EvaluationError


def _softmax(n: int, classes: int, seed: int, scale: float = 1.0, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return torch.softmax(logits.to(dtype), dim=1)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-9, 1e-3, 1.0, 30.0, 300.0]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_confidence_and_entropy_tie_exactly_for_two_classes(seed, scale, dtype):
    result = membership_attack(
        member_probability=_softmax(40, 2, seed, scale, dtype),
        member_label=torch.zeros(40, dtype=torch.int64),
        non_member_probability=_softmax(30, 2, seed + 1, 1.3 * scale, dtype),
        non_member_label=torch.ones(30, dtype=torch.int64),
    )
    assert result.confidence_auroc == result.entropy_auroc


def test_two_class_entropy_score_orders_as_the_entropy():
    p = _softmax(200, 2, 0)
    entropy = -(p * p.log()).sum(dim=1)
    assert torch.equal(entropy_score(p).argsort(), entropy.argsort(descending=True))


def test_scores_equal_scikit_learn_for_three_classes():
    members, others = _softmax(60, 3, 1, 2.0), _softmax(50, 3, 2)
    labels = torch.randint(3, (110,), generator=torch.Generator().manual_seed(3))
    result = membership_attack(
        member_probability=members,
        member_label=labels[:60],
        non_member_probability=others,
        non_member_label=labels[60:],
    )
    p, is_member = torch.cat([members, others]), [1] * 60 + [0] * 50
    expected = (
        roc_auc_score(is_member, p[torch.arange(110), labels].log().numpy()),
        roc_auc_score(is_member, p.max(dim=1).values.numpy()),
        roc_auc_score(is_member, (p * p.log()).sum(dim=1).numpy()),
    )
    assert result == pytest.approx(expected, abs=1e-12)
    assert result.confidence_auroc != result.entropy_auroc


def test_certain_members_among_uncertain_others_are_all_found():
    result = membership_attack(
        member_probability=torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        member_label=torch.tensor([1, 0]),
        non_member_probability=torch.tensor([[0.5, 0.5], [0.4, 0.6]]),
        non_member_label=torch.tensor([1, 0]),
    )
    assert result == (1.0, 1.0, 1.0)


def test_confident_mistakes_fool_confidence_but_not_loss():
    result = membership_attack(
        member_probability=torch.tensor([[0.3, 0.7]] * 3),
        member_label=torch.ones(3, dtype=torch.int64),
        non_member_probability=torch.tensor([[0.0, 1.0]] * 3),
        non_member_label=torch.zeros(3, dtype=torch.int64),
    )
    assert (result.loss_auroc, result.confidence_auroc) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("probability", "label", "message"),
    [
        (torch.tensor([[0.5, 0.6]]), torch.tensor([0]), "sum 1"),
        (torch.tensor([[-0.1, 1.1]]), torch.tensor([0]), "sum 1"),
        (torch.tensor([0.5]), torch.tensor([0]), "shape"),
        (torch.tensor([[1.0]]), torch.tensor([0]), "sum 1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), "class index"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), "class index"),
        (torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([0]), "same classes"),
    ],
)
def test_bad_outputs_are_refused(probability, label, message):
    with pytest.raises(EvaluationError, match=message):
        membership_attack(
            member_probability=probability,
            member_label=label,
            non_member_probability=torch.tensor([[0.5, 0.5]]),
            non_member_label=torch.tensor([0]),
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_are_accepted_and_still_tie(dtype):
    members, others = _softmax(40, 2, 4, 3.0).to(dtype), _softmax(30, 2, 5).to(dtype)
    result = membership_attack(
        member_probability=members.requires_grad_(),
        member_label=torch.zeros(40),
        non_member_probability=others,
        non_member_label=torch.ones(30),
    )
    assert result.confidence_auroc == result.entropy_auroc
    expected = roc_auc_score(
        [1] * 40 + [0] * 30, torch.cat([members, others]).detach().double().max(1).values
    )
    assert result.confidence_auroc == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("label", [torch.tensor([0.5]), torch.tensor([torch.nan]), torch.tensor([-1])])
def test_labels_that_are_no_class_are_refused(label):
    with pytest.raises(EvaluationError, match="class index"):
        membership_attack(
            member_probability=torch.tensor([[0.5, 0.5]]),
            member_label=label,
            non_member_probability=torch.tensor([[0.5, 0.5]]),
            non_member_label=torch.tensor([0]),
        )
