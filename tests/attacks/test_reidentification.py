"""Thresholds of the identity filter against brute force, the pair logistic against scikit-learn, AUROC intervals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedsynth.attacks.reidentification import (
    class_operating_points,
    error_rates,
    fit_pair_logistic,
    operating_point,
    pair_auroc_interval,
)
from fedsynth.evaluation.checks import EvaluationError

# Few distinct values, so that ties are common.
PROBABILITIES = st.lists(st.integers(0, 8).map(lambda value: value / 8), min_size=1, max_size=12)


def rates(positive: list[float], negative: list[float], threshold: float) -> tuple[float, float]:
    """FPR and FNR by counting."""
    false = sum(value > threshold for value in negative) / len(negative)
    return false, sum(value <= threshold for value in positive) / len(positive)


def pairs(positive: list[float], negative: list[float]) -> tuple[Tensor, Tensor]:
    same = torch.cat([torch.ones(len(positive)), torch.zeros(len(negative))]).long()
    return torch.tensor([*positive, *negative], dtype=torch.float64), same


def cuts(values: list[float]) -> list[float]:
    """A threshold for every way to cut these values."""
    return [-1.0, *sorted(set(values))]


@given(PROBABILITIES, PROBABILITIES, st.integers(0, 10).map(lambda value: value / 10))
def test_rates_are_those_of_counting_and_no_other_cut_does_better(
    positive: list[float], negative: list[float], value: float
) -> None:
    all_rates = [rates(positive, negative, cut) for cut in cuts(positive + negative)]
    probability, same = pairs(positive, negative)

    by_fpr = operating_point(probability, same, "fpr", value)
    by_fnr = operating_point(probability, same, "fnr", value)
    youden = operating_point(probability, same, "youden")
    for point in (by_fpr, by_fnr, youden):
        counted = rates(positive, negative, point.threshold)
        assert (point.fpr.share, point.fnr.share) == pytest.approx(counted)

    # The least strict threshold within the limit, i.e. with the fewest errors of the other kind.
    slack = 1e-12
    assert by_fpr.fpr.share <= value + slack
    assert by_fpr.fnr.share == pytest.approx(min(fnr for fpr, fnr in all_rates if fpr <= value + slack))
    assert by_fnr.fnr.share <= value + slack
    assert by_fnr.fpr.share == pytest.approx(min(fpr for fpr, fnr in all_rates if fnr <= value + slack))
    assert youden.fpr.share + youden.fnr.share == pytest.approx(min(map(sum, all_rates)))


def test_flagged_is_strictly_above_a_fixed_threshold() -> None:
    point = operating_point(*pairs([0.5, 0.6], [0.5, 0.4, 0.9]), "fixed", 0.5)
    assert (point.threshold, point.fnr.successes, point.fpr.successes) == (0.5, 1, 1)
    assert (point.fnr.trials, point.fpr.trials) == (2, 3)
    assert error_rates(*pairs([0.5, 0.6], [0.5, 0.4, 0.9]), 0.5) == point


def test_a_chosen_threshold_survives_rounding_of_the_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    probability, same = torch.rand(400, generator=generator, dtype=torch.float64), torch.arange(400) % 2
    point = operating_point(probability, same, "fpr", 0.1)
    # 200 pairs of two persons in [0, 1]: neighbors are 0.0025 apart on average, far more than 1e-9.
    moved = probability + 1e-9 * torch.randn(400, generator=generator, dtype=torch.float64)
    assert error_rates(moved.clamp(0, 1), same, point.threshold).fpr.successes == point.fpr.successes == 20


@pytest.mark.parametrize("one_hot", [False, True])
def test_class_thresholds_are_those_of_the_class_alone(one_hot: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    probability, same = torch.rand(300, generator=generator, dtype=torch.float64), torch.arange(300) % 2
    label = torch.randint(3, (300,), generator=generator)
    given_label = torch.nn.functional.one_hot(label, 3).to(torch.uint8) if one_hot else label
    points = class_operating_points(probability, same, given_label, ("a", "b", "c"), "fpr", 0.2)
    for number, name in enumerate("abc"):
        rows = label == number
        assert points[name] == operating_point(probability[rows], same[rows], "fpr", 0.2)


def test_class_without_pairs_of_one_person_is_refused_by_name() -> None:
    probability, same = pairs([0.5, 0.6], [0.5, 0.4])
    with pytest.raises(EvaluationError, match="Class rare has 0 held-out pairs of one person and 1 of two"):
        class_operating_points(probability, same, torch.tensor([0, 0, 0, 1]), ("common", "rare"), "youden")


def test_logistic_is_that_of_scikit_learn_on_balanced_smoothed_targets() -> None:
    generator = torch.Generator().manual_seed(2)
    same = (torch.arange(500) % 5 == 0).long()
    score = 0.2 * torch.randn(500, generator=generator, dtype=torch.float64) + 0.3 * same
    found = fit_pair_logistic(score, same)

    # scikit-learn takes no fractional targets: every pair once as a positive and once as a negative, weighted.
    count = torch.where(same == 1, same.sum(), (1 - same).sum()).double()
    target = torch.where(same == 1, (count + 1) / (count + 2), 1 / (count + 2))
    weight = (
        torch.cat([target / count, (1 - target) / count]) * 1000
    )  # large against rounding in its tolerance
    model = LogisticRegression(C=math.inf, tol=1e-10, max_iter=1000)
    model.fit(
        score.repeat(2)[:, None].numpy(),
        torch.arange(2).flip(0).repeat_interleave(500).numpy(),
        weight.numpy(),
    )
    assert found.scale == pytest.approx(float(model.coef_[0, 0]), rel=1e-4)
    assert found.bias == pytest.approx(float(model.intercept_[0]), rel=1e-4)


def test_logistic_does_not_depend_on_how_many_pairs_of_a_kind_there_are() -> None:
    same = torch.tensor([1] * 200 + [0] * 200)
    score = torch.randn(400, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + same
    more = torch.cat([score, score[200:].repeat(4)]), torch.cat([same, same[200:].repeat(4)])
    first, second = fit_pair_logistic(score, same), fit_pair_logistic(*more)
    # Only the smoothing of the targets, 1 in 200 against 1 in 1000, differs.
    assert second.scale == pytest.approx(first.scale, rel=0.03)
    assert second.bias == pytest.approx(first.bias, abs=0.03)


def test_logistic_of_separated_scores_is_finite_and_of_reversed_ones_flat() -> None:
    same = torch.tensor([1, 1, 1, 0, 0, 0])
    score = torch.tensor([3.0, 4.0, 5.0, 0.0, 1.0, 2.0])
    assert 0 < fit_pair_logistic(score, same).scale < 100
    reversed_ = fit_pair_logistic(-score, same)
    assert (reversed_.scale, reversed_.loss) == pytest.approx((0, math.log(2)), abs=1e-6)


def patients_and_scores() -> tuple[Tensor, Tensor, Tensor]:
    """40 patients with 1 to 6 pairs of their own, and pairs of two; scores of a patient resemble each other."""
    generator = torch.Generator().manual_seed(4)
    own = torch.arange(40).repeat_interleave(torch.arange(40) % 6 + 1)
    patient = torch.cat([own[:, None].expand(-1, 2), torch.stack([own, (own + 7) % 40], 1)])
    same = (patient[:, 0] == patient[:, 1]).long()
    level = torch.randn(40, generator=generator, dtype=torch.float64)
    score = (
        same + level[patient[:, 0]] + 0.1 * torch.randn(len(same), generator=generator, dtype=torch.float64)
    )
    return score, same, patient


def test_auroc_is_that_of_scikit_learn_and_its_interval_wider_than_that_of_independent_pairs() -> None:
    score, same, patient = patients_and_scores()
    found = pair_auroc_interval(
        score, same, patient, generator=torch.Generator().manual_seed(0), num_replicates=400
    )
    assert found.estimate == pytest.approx(roc_auc_score(same, score))
    assert found.low < found.estimate < found.high
    # Were pairs independent, each would be a patient of its own.
    alone = torch.arange(len(same))
    single = torch.stack([alone, torch.where(same == 1, alone, alone + len(same))], 1)
    naive = pair_auroc_interval(
        score, same, single, generator=torch.Generator().manual_seed(0), num_replicates=400
    )
    assert found.high - found.low > 1.3 * (naive.high - naive.low)


def test_patients_that_contradict_the_pairs_are_refused() -> None:
    score, same, patient = patients_and_scores()
    with pytest.raises(EvaluationError, match="equal exactly where is_same is 1"):
        pair_auroc_interval(score, 1 - same, patient, generator=torch.Generator(), num_replicates=2)


@pytest.mark.parametrize(
    ("rule", "value", "message"),
    [
        ("best", 0.1, "rule must be one of fixed, fpr, fnr, youden, got 'best'"),
        ("youden", 0.1, "takes no value"),
        ("fpr", None, "value of the rule fpr must be a number in"),
        ("fnr", 1.5, "value of the rule fnr must be a number in"),
    ],
)
def test_impossible_rules_are_refused(rule: str, value: float | None, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        operating_point(*pairs([0.5], [0.5]), rule, value)  # type: ignore[arg-type]


def test_pairs_of_one_kind_only_are_refused() -> None:
    with pytest.raises(EvaluationError, match="pairs of one person and of two, got 3 and 0"):
        operating_point(torch.rand(3), torch.ones(3), "youden")
    with pytest.raises(EvaluationError, match="got 0 and 3"):
        fit_pair_logistic(torch.rand(3), torch.zeros(3).long())
