"""Expected calibration error against torchmetrics and by hand; temperature scaling."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.evaluation import (
    EvaluationError,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    reliability_diagram,
    scale_logits,
)


def _logits(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-odds and labels drawn from them: perfectly calibrated in expectation."""
    generator = torch.Generator().manual_seed(seed)
    logit = 1.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return logit, (torch.rand(n, generator=generator, dtype=torch.float64) < torch.sigmoid(logit)).long()


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_ece_equals_torchmetrics_off_the_bin_edges(seed, num_bins):
    from torchmetrics.functional.classification import binary_calibration_error

    generator = torch.Generator().manual_seed(seed)
    # Random reals hit an edge with probability zero.
    probability = torch.rand(100, generator=generator, dtype=torch.float64)
    target = (torch.rand(100, generator=generator) < 0.4).long()
    expected = float(binary_calibration_error(probability, target, n_bins=num_bins, norm="l1"))
    assert expected_calibration_error(probability, target, num_bins) == pytest.approx(expected, abs=1e-12)


def test_bins_are_closed_on_the_right():
    # 0.5 shares the lower bin with 0.25: |(0.25 + 0.5 - 0 - 1) / 2| * 2/3 plus the upper bin |0.75 - 0| / 3.
    value = expected_calibration_error(torch.tensor([0.25, 0.5, 0.75]), torch.tensor([0, 1, 0]), num_bins=2)
    assert value == pytest.approx(0.25 / 3 + 0.75 / 3, abs=1e-12)


def test_zero_and_one_fall_in_the_outer_bins():
    # One shares the upper bin with 0.9, zero the lower one with 0.1.
    value = expected_calibration_error(
        torch.tensor([0.0, 0.1, 0.9, 1.0]), torch.tensor([0, 1, 1, 1]), num_bins=2
    )
    assert value == pytest.approx((0.9 + 0.1) / 4, abs=1e-7)


def test_one_bin_compares_the_two_means():
    probability, target = torch.tensor([0.2, 0.4, 0.9]), torch.tensor([0, 1, 1])
    assert expected_calibration_error(probability, target, 1) == pytest.approx(2 / 3 - 0.5, abs=1e-7)


def test_temperature_of_calibrated_logits_is_one_and_of_sharpened_ones_the_factor():
    logit, target = _logits(20_000, 0)
    # The Fisher information of 1/T gives a standard error near 0.02 here.
    assert fit_temperature(logit, target).temperature == pytest.approx(1.0, abs=0.06)
    sharp = fit_temperature(3 * logit, target)
    assert sharp.temperature == pytest.approx(3 * fit_temperature(logit, target).temperature, rel=1e-4)
    assert sharp.nll_after < sharp.nll_before


def test_fitted_temperature_zeroes_the_gradient_of_the_likelihood():
    logit, target = _logits(500, 1)
    temperature = torch.tensor(
        fit_temperature(2 * logit, target).temperature, dtype=torch.float64, requires_grad=True
    )
    loss = torch.nn.functional.binary_cross_entropy_with_logits(2 * logit / temperature, target.double())
    (gradient,) = torch.autograd.grad(loss, temperature)
    assert abs(float(gradient)) < 1e-6


def test_binary_and_two_column_logits_agree():
    logit, target = _logits(300, 2)
    columns = torch.stack([torch.zeros_like(logit) + 0.7, logit + 0.7], dim=1)
    assert fit_temperature(columns, target).temperature == pytest.approx(
        fit_temperature(logit, target).temperature
    )
    assert torch.allclose(scale_logits(columns, 2.0), scale_logits(logit, 2.0))


def test_scaling_keeps_the_ranking_and_rows_sum_to_one():
    logit, _ = _logits(200, 3)
    scaled = scale_logits(logit, 4.0)
    assert torch.equal(scaled[:, 1].argsort(), logit.argsort())
    assert torch.allclose(scaled.sum(dim=1), torch.ones(200, dtype=torch.float64))


def test_separated_records_end_at_the_lower_bound():
    fit = fit_temperature(torch.tensor([-1.0, 1.0]), torch.tensor([0, 1]))
    assert fit.temperature < 0.05
    assert fit.nll_after <= fit.nll_before


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(3, 1), torch.zeros(3), "logits must be finite"),
        (torch.tensor([math.inf, 0.0]), torch.tensor([0, 1]), "logits must be finite"),
        (torch.zeros(3), torch.zeros(2), "one class index per record"),
        (torch.zeros(2), torch.tensor([0, 2]), r"lie in \[0, 1\]"),
    ],
)
def test_bad_logits_are_refused(logits, target, message):
    with pytest.raises(EvaluationError, match=message):
        fit_temperature(logits, target)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_impossible_temperatures_are_refused(temperature):
    with pytest.raises(EvaluationError, match="temperature"):
        scale_logits(torch.zeros(2), temperature)


def test_no_bins_are_refused():
    with pytest.raises(EvaluationError, match="num_bins"):
        expected_calibration_error(torch.tensor([0.5]), torch.tensor([1]), 0)


@pytest.mark.parametrize("num_bins", [0, 1.5, "15", True])
def test_a_number_of_bins_that_is_no_count_is_refused(num_bins):
    with pytest.raises(EvaluationError, match="num_bins must be an integer >= 1, got"):
        expected_calibration_error(torch.tensor([0.5]), torch.tensor([1]), num_bins=num_bins)


def test_brier_score_equals_scikit_learn():
    from sklearn.metrics import brier_score_loss

    logit, target = _logits(150, 4)
    probability = torch.sigmoid(logit)
    assert brier_score(probability, target) == pytest.approx(
        brier_score_loss(target.numpy(), probability.numpy())
    )
    assert brier_score(target.double(), target) == 0.0


@given(st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_the_diagram_sums_up_to_the_calibration_error(seed, num_bins):
    logit, target = _logits(80, seed)
    probability = torch.sigmoid(logit)
    diagram = reliability_diagram(probability, target, num_bins)
    gap = (diagram.mean_probability - diagram.positive_share).abs().nan_to_num()
    expected = expected_calibration_error(probability, target, num_bins)
    assert float((diagram.num_records * gap).sum() / 80) == pytest.approx(expected, abs=1e-12)
    assert int(diagram.num_records.sum()) == 80
    assert torch.equal(diagram.mean_probability.isnan(), diagram.num_records == 0)
    filled = diagram.num_records > 0
    assert bool((diagram.mean_probability <= diagram.upper_edge + 1e-12)[filled].all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: brier_score(torch.tensor([1.5]), torch.tensor([1])), "lie in"),
        (lambda: reliability_diagram(torch.tensor([0.5]), torch.tensor([1]), 0), "num_bins"),
        (lambda: fit_temperature(torch.zeros(2), torch.tensor([0.5, 1.0])), "class index"),
        (lambda: fit_temperature(torch.zeros(2), torch.tensor([torch.nan, 1.0])), "class index"),
        (lambda: fit_temperature(torch.zeros(0), torch.zeros(0)), "at least one record"),
        (lambda: scale_logits(torch.zeros(2), "2"), "temperature"),
    ],
)
def test_bad_calibration_input_is_refused(call, message):
    with pytest.raises(EvaluationError, match=message):
        call()
