"""The Privacy-Performance Score: the paper's own table, and what any harmonic mean must satisfy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    precision_score,
    recall_score,
)

from fedsynth.evaluation import (
    EvaluationError,
    classification_metrics,
    decision_metrics,
    normalized_privacy_score,
    privacy_performance_score,
)
from fedsynth.evaluation.privacy_performance import weighted_decision_metrics

# FedMPA, comparison table: UAR, AUC of the confidence attack, ρ, PPS as printed; then PPS to four digits.
PRINTED = {
    "Centralised": (0.92, 0.42, 0.84, 0.88, 0.8782),
    "FedProx": (0.74, 0.43, 0.86, 0.80, 0.7955),
    "FedAvg": (0.76, 0.44, 0.88, 0.82, 0.8156),
    "FedProto": (0.81, 0.45, 0.90, 0.85, 0.8526),
    "FedGPD": (0.87, 0.54, 0.92, 0.89, 0.8943),
    "FedMPA": (0.89, 0.52, 0.96, 0.92, 0.9237),
}
shares = st.floats(0, 1)


@pytest.mark.parametrize("system", PRINTED)
def test_the_papers_table_follows_from_its_uar_and_auc(system: str) -> None:
    uar, auc, privacy, score, digits = PRINTED[system]
    rho = normalized_privacy_score(auc)
    assert rho == pytest.approx(privacy, abs=1e-12)
    assert round(privacy_performance_score(uar, rho), 2) == score
    assert round(privacy_performance_score(uar, rho), 4) == digits


@given(shares, shares)
def test_the_score_is_symmetric_and_lies_between_its_parts(first: float, second: float) -> None:
    score = privacy_performance_score(first, second)
    assert score == privacy_performance_score(second, first)
    # Three roundings of half a unit in the last place; subnormal numbers lose more.
    slack = 2 * 2**-52 * max(first, second) + 2**-1070
    assert min(first, second) - slack <= score <= max(first, second) + slack
    assert score <= math.sqrt(first) * math.sqrt(second) + 2 * slack  # at most the geometric mean


@given(shares)
def test_the_score_of_equal_parts_is_that_part_and_zero_of_both_is_zero(value: float) -> None:
    assert privacy_performance_score(value, value) == pytest.approx(value, rel=2**-51, abs=2**-1070)
    assert privacy_performance_score(value, 0.0) == 0.0


@given(shares)
def test_an_attack_and_its_reverse_leak_the_same(auc: float) -> None:
    assert normalized_privacy_score(auc) == pytest.approx(normalized_privacy_score(1 - auc), abs=2**-52)
    assert 0 <= normalized_privacy_score(auc) <= 1


def test_the_ends_of_the_privacy_score() -> None:
    assert [normalized_privacy_score(auc) for auc in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 0.0]


def test_tensors_are_scored_element_by_element_and_nan_goes_through() -> None:
    uar = torch.tensor([0.0, 0.5, float("nan"), 1.0])
    auc = torch.tensor([0.0, 0.5, 0.5, float("nan")])
    rho = normalized_privacy_score(auc)
    assert rho.dtype == torch.float64
    score = privacy_performance_score(uar, rho)
    assert score[:2].tolist() == [0.0, pytest.approx(2 / 3)]
    assert score[2:].isnan().all()
    assert math.isnan(privacy_performance_score(float("nan"), 0.0))


@pytest.mark.parametrize("value", [-1e-9, 1 + 1e-9, float("inf"), 92, True, "0.9"])
def test_what_is_no_share_is_refused(value: object) -> None:
    with pytest.raises(EvaluationError, match="attack_auroc must"):
        normalized_privacy_score(value)  # type: ignore[call-overload]
    with pytest.raises(EvaluationError, match="uar must"):
        privacy_performance_score(value, 0.5)  # type: ignore[call-overload]
    with pytest.raises(EvaluationError, match="privacy_score must"):
        privacy_performance_score(0.5, value)  # type: ignore[call-overload]


def test_scores_of_different_shapes_are_refused() -> None:
    with pytest.raises(EvaluationError, match="one shape"):
        privacy_performance_score(torch.zeros(2), torch.zeros(3))


classes = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


@given(classes)
def test_metrics_of_predicted_classes_equal_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predicted, target = (torch.tensor(column) for column in zip(*pairs, strict=True))
    found = decision_metrics(predicted, target)
    both = 0 < int(target.sum()) < len(target)
    assert found["accuracy"] == pytest.approx(accuracy_score(target, predicted))
    assert math.isnan(found["uar"]) == (not both)
    if both:
        assert found["uar"] == pytest.approx(balanced_accuracy_score(target, predicted))
        assert found["sensitivity"] == pytest.approx(recall_score(target, predicted))
        assert found["specificity"] == pytest.approx(recall_score(target, predicted, pos_label=0))
        assert found["f1"] == pytest.approx(f1_score(target, predicted))
    if predicted.any():
        assert found["precision"] == pytest.approx(precision_score(target, predicted))
    else:
        assert math.isnan(found["precision"])


def test_classes_of_a_threshold_have_the_metrics_of_that_threshold() -> None:
    stream = torch.Generator().manual_seed(0)
    probability, target = torch.rand(50, generator=stream), torch.randint(2, (50,), generator=stream)
    wanted = classification_metrics(probability, target, 0.4)
    found = decision_metrics((probability >= 0.4).long(), target)
    assert found.pop("uar") == wanted["balanced_accuracy"]
    assert found == {name: wanted[name] for name in found}


def test_a_weight_counts_a_record_as_often_as_it_says() -> None:
    stream = torch.Generator().manual_seed(1)
    predicted, target = torch.randint(2, (3, 20), generator=stream), torch.randint(2, (20,), generator=stream)
    weight = torch.randint(4, (5, 20), generator=stream)
    found = weighted_decision_metrics(predicted, target, weight.double())
    for replicate in range(5):
        rows = torch.arange(20).repeat_interleave(weight[replicate])
        for model in range(3):
            wanted = decision_metrics(predicted[model, rows], target[rows])
            got = {name: float(value[replicate, model]) for name, value in found.items()}
            assert got == pytest.approx(wanted, nan_ok=True)


@pytest.mark.parametrize(
    ("predicted", "target", "message"),
    [
        ([0, 1], [0, 1, 1], "one class per record"),
        ([0, 2], [0, 1], "predicted must hold only 0 and 1"),
        ([0.3, 0.7], [0, 1], "predicted must hold only 0 and 1"),
        ([0, 1], [0, -1], "target must hold only 0 and 1"),
        ([], [], "at least one record"),
    ],
)
def test_what_are_no_classes_is_refused(predicted: list[float], target: list[float], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        decision_metrics(torch.tensor(predicted), torch.tensor(target))
