"""Classification metrics against scikit-learn and torchmetrics; thresholds by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.evaluation import (
    EvaluationError,
    balanced_accuracy_threshold,
    classification_metrics,
    f1_threshold,
    predict_positive,
)


def _sample(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = (torch.rand(n, generator=generator) < 0.6).long()
    logit = 2 * torch.randn(n, generator=generator, dtype=torch.float64) + target
    return torch.sigmoid(logit), target


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
def test_every_metric_equals_scikit_learn(threshold):
    probability, target = _sample(200, 0)
    ours = classification_metrics(probability, target, threshold)
    p, y = probability.numpy(), target.numpy()
    predicted = (p >= threshold).astype(int)
    tn, fp, fn, tp = sk.confusion_matrix(y, predicted).ravel()
    expected = {
        "auroc": sk.roc_auc_score(y, p),
        "auprc": sk.average_precision_score(y, p),
        "accuracy": sk.accuracy_score(y, predicted),
        "precision": sk.precision_score(y, predicted),
        "f1": sk.f1_score(y, predicted),
        "balanced_accuracy": sk.balanced_accuracy_score(y, predicted),
        "sensitivity": sk.recall_score(y, predicted),
        "specificity": sk.recall_score(y, predicted, pos_label=0),
        "npv": sk.precision_score(y, predicted, pos_label=0),
        "mcc": sk.matthews_corrcoef(y, predicted),
        "brier": sk.brier_score_loss(y, p),
        "nll": sk.log_loss(y, p),
        "tn": tn,
        "fp": fp,
        "fn": fn,
        "tp": tp,
    }
    assert {name: ours[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert set(ours) == {*expected, "ece"}


def test_agrees_with_torchmetrics_to_its_float32_precision():
    from torchmetrics.functional import classification as tm

    probability, target = _sample(300, 1)
    ours = classification_metrics(probability, target, 0.5)
    assert ours["auroc"] == pytest.approx(float(tm.binary_auroc(probability, target)), abs=1e-6)
    assert ours["auprc"] == pytest.approx(float(tm.binary_average_precision(probability, target)), abs=1e-6)
    assert ours["mcc"] == pytest.approx(float(tm.binary_matthews_corrcoef(probability, target)), abs=1e-6)
    assert ours["specificity"] == pytest.approx(float(tm.binary_specificity(probability, target)), abs=1e-6)


def test_a_probability_on_the_threshold_is_positive():
    assert classification_metrics(torch.tensor([0.5, 0.4]), torch.tensor([0, 0]), 0.5)["fp"] == 1
    assert predict_positive(torch.tensor([0.5, 0.4]), 0.5).tolist() == [True, False]


def test_counts_are_whole_numbers_and_numpy_is_accepted():
    metrics = classification_metrics(np.array([0.9, 0.1, 0.8], dtype=np.float32), np.array([1, 0, 0]), 0.5)
    assert [metrics[name] for name in ("tn", "fp", "fn", "tp")] == [1, 1, 0, 1]
    assert all(isinstance(metrics[name], int) for name in ("tn", "fp", "fn", "tp"))


@pytest.mark.parametrize(
    ("probability", "target", "undefined"),
    [
        ([0.9, 0.8], [1, 1], {"auroc", "specificity", "balanced_accuracy", "npv"}),
        ([0.1, 0.2], [0, 0], {"auroc", "auprc", "sensitivity", "balanced_accuracy", "precision", "f1"}),
        ([0.1, 0.2], [0, 1], {"precision"}),
        ([0.9, 0.8], [0, 1], {"npv"}),
    ],
)
def test_undefined_ratios_are_nan_and_nothing_else_is(probability, target, undefined):
    metrics = classification_metrics(torch.tensor(probability), torch.tensor(target), 0.5)
    assert {name for name, value in metrics.items() if math.isnan(value)} == undefined
    assert metrics["mcc"] == 0.0


def test_certain_and_wrong_probabilities_have_finite_likelihood():
    metrics = classification_metrics(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]), 0.5)
    assert metrics["nll"] == pytest.approx(-math.log(1e-12), rel=1e-4)
    assert metrics["brier"] == 1.0
    assert metrics["mcc"] == -1.0


rows = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), min_size=2, max_size=30).filter(
    lambda r: 0 < sum(y for _, y in r) < len(r)
)


@given(rows)
def test_thresholds_are_the_largest_maximizers_by_brute_force(sample):
    probability = torch.tensor([p / 8 for p, _ in sample], dtype=torch.float64)
    target = torch.tensor([y for _, y in sample])
    for choose, metric in ((balanced_accuracy_threshold, "balanced_accuracy"), (f1_threshold, "f1")):
        scores = {
            t: classification_metrics(probability, target, t)[metric]
            for t in sorted(set(probability.tolist()))
        }
        best = max(scores.values())
        assert choose(probability, target) == max(t for t, value in scores.items() if value >= best - 1e-12)


def test_balanced_accuracy_ties_are_exact_despite_rounding():
    # 1/2 + 4/6 at 0.75 equals 2/2 + 1/6 at 0.5, but their float64 sums differ in the last bit.
    assert 1 / 2 + 4 / 6 < 2 / 2 + 1 / 6
    probability = torch.tensor([0.75, 0.5, 0.75, 0.75, 0.5, 0.5, 0.5, 0.25])
    target = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0])
    assert balanced_accuracy_threshold(probability, target) == 0.75


@pytest.mark.parametrize("choose", [balanced_accuracy_threshold, f1_threshold])
def test_no_threshold_from_one_class(choose):
    with pytest.raises(EvaluationError, match="needs both classes"):
        choose(torch.tensor([0.2, 0.3]), torch.tensor([1, 1]))


@pytest.mark.parametrize(
    ("probability", "threshold", "message"),
    [
        ([0.5, 1.5], 0.5, r"lie in \[0, 1\]"),
        ([0.5, math.nan], 0.5, "NaN"),
        ([0.5, 0.5], math.nan, "threshold"),
    ],
)
def test_logits_and_nan_are_refused(probability, threshold, message):
    with pytest.raises(EvaluationError, match=message):
        classification_metrics(torch.tensor(probability), torch.tensor([0, 1]), threshold)
