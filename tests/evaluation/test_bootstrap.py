"""Bootstrap intervals: equality with explicit resampling, coverage, pairing."""

from __future__ import annotations

import math

import pytest
import torch

from fedsynth.evaluation import (
    EvaluationError,
    bootstrap,
    bootstrap_contrasts,
    bootstrap_intervals,
    classification_metrics,
    holm_adjust,
    paired_bootstrap,
)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _sample(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = _generator(seed)
    target = (torch.rand(n, generator=generator) < 0.6).long()
    logit = (torch.randn(n, generator=generator, dtype=torch.float64) + target).mul(4).round() / 4  # ties
    return torch.sigmoid(logit), target


def test_replicates_equal_metrics_of_explicitly_resampled_records():
    probability, target = _sample(60, 0)
    (metrics,) = bootstrap._replicate_metrics([(probability, target, 0.5)], 20, _generator(1), 15)
    drawn = torch.randint(60, (20, 60), generator=_generator(1))
    for replicate, rows in enumerate(drawn):
        expected = classification_metrics(probability[rows], target[rows], 0.5)
        actual = {name: float(value[1 + replicate]) for name, value in metrics.items()}
        assert actual == pytest.approx({name: expected[name] for name in actual}, abs=1e-12, nan_ok=True)


def test_estimate_is_the_metric_of_the_sample_and_lies_inside():
    probability, target = _sample(200, 2)
    expected = classification_metrics(probability, target, 0.5)
    intervals = bootstrap_intervals(probability, target, 0.5, generator=_generator(3), num_replicates=500)
    for name in ("auroc", "auprc", "f1", "balanced_accuracy", "brier"):
        assert intervals[name].estimate == expected[name]
        assert intervals[name].low < expected[name] < intervals[name].high
    assert not {"tn", "fp", "fn", "tp"} & set(intervals)


def test_accuracy_interval_has_the_binomial_width():
    probability, target = _sample(400, 4)
    interval = bootstrap_intervals(probability, target, 0.5, generator=_generator(5), num_replicates=4000)[
        "accuracy"
    ]
    p = interval.estimate
    # The replicate accuracy is Binomial(400, p)/400; 8 % allows for 4,000 replicates and the lattice.
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * math.sqrt(p * (1 - p) / 400), rel=0.08)


def test_same_generator_state_gives_same_interval_whatever_the_chunks(monkeypatch):
    probability, target = _sample(50, 6)
    whole = bootstrap_intervals(probability, target, 0.5, generator=_generator(7), num_replicates=64)
    monkeypatch.setattr(bootstrap, "CHUNK_ELEMENTS", 50 * 8)
    parts = bootstrap_intervals(probability, target, 0.5, generator=_generator(7), num_replicates=64)
    for name, interval in whole.items():
        assert parts[name].low == pytest.approx(interval.low, abs=1e-12)
        assert parts[name].high == pytest.approx(interval.high, abs=1e-12)


def test_a_system_never_differs_from_itself():
    probability, target = _sample(100, 8)
    result = paired_bootstrap(
        probability, probability, target, first_threshold=0.5, second_threshold=0.5, generator=_generator(9)
    )
    assert all((d.estimate, d.low, d.high, d.p_value) == (0.0, 0.0, 0.0, 1.0) for d in result.values())


def test_paired_difference_is_antisymmetric():
    (first, target), (noise, _) = _sample(150, 10), _sample(150, 11)
    second = 0.5 * first + 0.5 * noise
    options = {"first_threshold": 0.5, "second_threshold": 0.5, "num_replicates": 400}
    forward = paired_bootstrap(first, second, target, generator=_generator(12), **options)["auroc"]
    backward = paired_bootstrap(second, first, target, generator=_generator(12), **options)["auroc"]
    assert (forward.estimate, forward.p_value) == (-backward.estimate, backward.p_value)
    assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low), abs=1e-12)


def test_pairing_narrows_the_interval_of_correlated_systems():
    probability, target = _sample(300, 13)
    slightly_worse = (probability + 0.02 * torch.rand(300, generator=_generator(14))).clamp(max=1)
    paired = paired_bootstrap(
        probability,
        slightly_worse,
        target,
        first_threshold=0.5,
        second_threshold=0.5,
        generator=_generator(15),
    )["auroc"]
    alone = bootstrap_intervals(probability, target, 0.5, generator=_generator(15))["auroc"]
    assert paired.high - paired.low < 0.3 * (alone.high - alone.low)


def test_a_clearly_better_system_has_a_small_p_value():
    probability, target = _sample(300, 16)
    result = paired_bootstrap(
        target.double() * 0.8 + 0.1,
        probability,
        target,
        first_threshold=0.5,
        second_threshold=0.5,
        generator=_generator(17),
    )["auroc"]
    assert result.low > 0
    assert result.p_value == 0.0


def test_p_value_is_twice_the_smaller_tail():
    (first, target), (second, _) = _sample(80, 21), _sample(80, 22)
    second = 0.7 * first + 0.3 * second
    systems = [(first, target, 0.5), (second, target, 0.5)]
    a, b = bootstrap._replicate_metrics(systems, 300, _generator(23), 15)
    difference = (a["auroc"] - b["auroc"])[1:]
    tail = min(float((difference <= 0).double().mean()), float((difference >= 0).double().mean()))
    assert 0 < tail < 0.5
    result = paired_bootstrap(
        first,
        second,
        target,
        first_threshold=0.5,
        second_threshold=0.5,
        generator=_generator(23),
        num_replicates=300,
    )["auroc"]
    assert result.p_value == 2 * tail


def test_replicates_without_one_class_are_counted_not_hidden():
    probability, target = torch.tensor([0.9, 0.2, 0.3]), torch.tensor([1, 0, 0])
    interval = bootstrap_intervals(probability, target, 0.5, generator=_generator(18), num_replicates=1000)[
        "auroc"
    ]
    # P(no positive) + P(no negative) = (2/3)³ + (1/3)³ = 1/3; four standard deviations.
    assert abs(interval.num_undefined / 1000 - 1 / 3) < 4 * math.sqrt(2 / 9 / 1000)
    assert interval.low == interval.high == 1.0


def test_holm_by_hand():
    adjusted = holm_adjust({"a": 0.04, "b": 0.01, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm_adjust({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_impossible_p_values_are_refused(value):
    with pytest.raises(EvaluationError, match="p-value"):
        holm_adjust({"a": value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicates": 0}, "num_replicates"),
        ({"confidence": 1.0}, "confidence"),
        ({"num_bins": 0}, "num_bins"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    probability, target = _sample(10, 19)
    with pytest.raises(EvaluationError, match=message):
        bootstrap_intervals(probability, target, 0.5, generator=_generator(0), **options)


def test_systems_of_different_records_are_refused():
    probability, target = _sample(10, 20)
    with pytest.raises(EvaluationError, match="second and target"):
        paired_bootstrap(
            probability,
            probability[:5],
            target,
            first_threshold=0.5,
            second_threshold=0.5,
            generator=_generator(0),
        )


def _three_systems() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    (first, target), (noise, _) = _sample(120, 30), _sample(120, 31)
    return {"a": first, "b": 0.6 * first + 0.4 * noise, "c": noise}, target


def test_contrasts_equal_one_pair_at_a_time():
    systems, target = _three_systems()
    thresholds = {"a": 0.5, "b": 0.4, "c": 0.6}
    together = bootstrap_contrasts(
        systems,
        target,
        thresholds=thresholds,
        contrasts=[("a", "b"), ("c", "b"), ("a", "a")],
        generator=_generator(32),
        num_replicates=200,
    )
    assert list(together) == [("a", "b"), ("c", "b"), ("a", "a")]
    for (first, second), found in together.items():
        alone = paired_bootstrap(
            systems[first],
            systems[second],
            target,
            first_threshold=thresholds[first],
            second_threshold=thresholds[second],
            generator=_generator(32),
            num_replicates=200,
        )
        assert found == alone


@pytest.mark.parametrize(
    ("contrasts", "message"),
    [([("a", "z")], "none for \\['z'\\]"), ([], "must name systems")],
)
def test_contrasts_of_unknown_systems_are_refused(contrasts, message):
    systems, target = _three_systems()
    with pytest.raises(EvaluationError, match=message):
        bootstrap_contrasts(
            systems,
            target,
            thresholds=dict.fromkeys(systems, 0.5),
            contrasts=contrasts,
            generator=_generator(0),
        )


def test_a_difference_without_any_value_has_no_p_value():
    result = paired_bootstrap(
        torch.tensor([0.9, 0.2]),
        torch.tensor([0.8, 0.3]),
        torch.ones(2),
        first_threshold=0.5,
        second_threshold=0.5,
        generator=_generator(33),
        num_replicates=10,
    )["auroc"]
    assert result.num_undefined == 10
    assert math.isnan(result.p_value)
    assert math.isnan(result.low)


def test_coverage_of_the_accuracy_interval_is_near_nominal():
    # 100 test sets of 150 records with accuracy 0.8: the number of intervals holding 0.8 is Binomial(100, 0.95)
    # to first order; 87 is 3.7 standard deviations below.
    generator, hits = _generator(34), 0
    for _ in range(100):
        target = (torch.rand(150, generator=generator) < 0.5).long()
        is_right = torch.rand(150, generator=generator) < 0.8
        probability = torch.where(is_right, target, 1 - target) * 0.8 + 0.1
        interval = bootstrap_intervals(probability, target, 0.5, generator=generator, num_replicates=400)
        hits += interval["accuracy"].low <= 0.8 <= interval["accuracy"].high
    assert 87 <= hits < 100
