"""AUROC and average precision against scikit-learn, with many ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from fedsynth.evaluation import EvaluationError, auroc, average_precision

pairs = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=40).filter(
    lambda rows: 0 < sum(y for _, y in rows) < len(rows)
)


@given(pairs)
def test_equal_scikit_learn_with_ties(rows):
    score = torch.tensor([s for s, _ in rows]).double() * 100  # far outside [0, 1]
    target = torch.tensor([y for _, y in rows])
    assert auroc(score, target) == pytest.approx(roc_auc_score(target.numpy(), score.numpy()), abs=1e-12)
    expected = average_precision_score(target.numpy(), score.numpy())
    assert average_precision(score, target) == pytest.approx(expected, abs=1e-12)


@given(pairs)
def test_reversing_the_scores_complements_auroc(rows):
    score, target = torch.tensor([s for s, _ in rows]).double(), torch.tensor([y for _, y in rows])
    assert auroc(-score, target) == pytest.approx(1 - auroc(score, target), abs=1e-12)


def test_scores_that_a_sigmoid_would_saturate_stay_ordered():
    assert auroc(torch.tensor([100.0, 101.0, 102.0, 103.0]), torch.tensor([0, 0, 1, 1])) == 1.0


def test_constant_scores_are_chance():
    target = torch.tensor([0, 1, 1, 0, 1])
    assert auroc(torch.zeros(5), target) == 0.5
    assert average_precision(torch.zeros(5), target) == pytest.approx(3 / 5)


def test_one_class_only_is_undefined():
    assert math.isnan(auroc(torch.tensor([0.1, 0.2]), torch.ones(2)))
    assert math.isnan(auroc(torch.tensor([0.1, 0.2]), torch.zeros(2)))
    assert math.isnan(average_precision(torch.tensor([0.1, 0.2]), torch.zeros(2)))
    assert average_precision(torch.tensor([0.1, 0.2]), torch.ones(2)) == 1.0


@pytest.mark.parametrize(
    ("score", "target", "message"),
    [
        (torch.zeros(3), torch.zeros(2), "same shape"),
        (torch.tensor([0.0, torch.nan]), torch.tensor([0, 1]), "NaN"),
        (torch.zeros(2), torch.tensor([0, 2]), "only 0 and 1"),
        (torch.zeros(0), torch.zeros(0), "at least one record"),
        (torch.zeros(2, 2), torch.zeros(2), "same shape"),
    ],
)
def test_bad_scores_are_refused(score, target, message):
    with pytest.raises(EvaluationError, match=message):
        auroc(score, target)
