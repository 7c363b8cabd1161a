"""The 1/σ law: the paper's own table, exact recovery, the delta method against simulation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsynth.attacks import auroc_of_index, fit_inverse_noise, sensitivity_index
from fedsynth.evaluation import EvaluationError
from fedsynth.privacy.gaussian import analytic_gaussian_std

#: Printed by the paper for ε = 8, 4, 2, 1: AUROC, and d' σ/Δ at δ = 1e-5 as it follows from the AUROC.
EPSILON, PAPER = (8.0, 4.0, 2.0, 1.0), (0.5093, 0.5068, 0.5029, 0.5016)
PRODUCT = (0.0198, 0.0261, 0.0205, 0.0212)


def _noise() -> list[float]:
    return [analytic_gaussian_std(epsilon, 1e-5, 1.0) for epsilon in EPSILON]


def test_the_papers_attack_table_has_a_constant_product_of_index_and_noise():
    products = [sensitivity_index(auroc) * noise for auroc, noise in zip(PAPER, _noise(), strict=True)]
    assert products == pytest.approx(PRODUCT, abs=1e-4)
    assert max(products) < 1.35 * min(products)


def test_the_law_fitted_to_the_papers_table_predicts_it():
    # Its standard deviations over 100 repetitions.
    errors = [std / 10 for std in (0.0026, 0.0024, 0.0023, 0.0023)]
    fit = fit_inverse_noise(_noise(), PAPER, errors)
    assert fit.slope == pytest.approx(0.0155 * math.sqrt(2), abs=0.001)
    for noise, auroc, error in zip(_noise(), PAPER, errors, strict=True):
        assert abs(fit.auroc(noise) - auroc) < 6 * error
    assert fit.chi_square > stats.chi2.ppf(0.95, 3)  # it does not hold within their errors, though


@given(st.floats(1e-6, 1 - 1e-6))
def test_index_and_auroc_invert_each_other(auroc):
    assert auroc_of_index(sensitivity_index(auroc)) == pytest.approx(auroc, rel=1e-9)


def test_index_is_the_distance_of_two_normal_scores():
    generator = torch.Generator().manual_seed(0)
    members = torch.randn(4000, generator=generator) + 0.8
    others = torch.randn(4000, generator=generator)
    auroc = float((members[:, None] > others).double().mean())
    assert sensitivity_index(auroc) == pytest.approx(0.8, abs=0.05)
    assert (sensitivity_index(0.5), sensitivity_index(1.0), sensitivity_index(0.0)) == (
        0,
        math.inf,
        -math.inf,
    )


@given(st.floats(0.01, 1.0), st.lists(st.floats(0.5, 20.0), min_size=2, max_size=6))
def test_points_on_the_law_are_recovered_exactly(slope, noise):
    auroc = [auroc_of_index(slope / value) for value in noise]
    for errors in (None, [0.01] * len(noise)):
        fit = fit_inverse_noise(noise, auroc, errors)
        assert fit.slope == pytest.approx(slope, rel=1e-6)
        assert fit.num_points == len(noise)


def test_the_error_of_the_slope_is_that_of_repeated_fits():
    generator = torch.Generator().manual_seed(1)
    noise, error = [0.6, 1.1, 2.0, 3.7], 0.003
    exact = torch.tensor([auroc_of_index(0.05 / value) for value in noise], dtype=torch.float64)
    drawn = exact + error * torch.randn(400, 4, generator=generator, dtype=torch.float64)
    fits = [fit_inverse_noise(noise, row, [error] * 4) for row in drawn.tolist()]
    slopes = torch.tensor([fit.slope for fit in fits])
    assert float(slopes.mean()) == pytest.approx(0.05, abs=5 * fits[0].slope_std / 20)
    assert float(slopes.std()) == pytest.approx(fits[0].slope_std, rel=0.15)
    assert float(torch.tensor([fit.chi_square for fit in fits]).mean()) == pytest.approx(3, abs=0.5)


def test_a_certain_point_outweighs_an_uncertain_one():
    fit = fit_inverse_noise([1.0, 1.0], [0.6, 0.7], [1e-5, 1e-1])
    assert fit.auroc(1.0) == pytest.approx(0.6, abs=1e-4)


def test_one_point_without_error_has_no_standard_error():
    fit = fit_inverse_noise([2.0], [0.55])
    assert fit.auroc(2.0) == pytest.approx(0.55)
    assert math.isnan(fit.slope_std)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "one value per point"),
        (([1.0], [0.5, 0.6]), "one value per point"),
        (([1.0], [0.5], [0.1, 0.1]), "one value per point"),
        (([0.0], [0.5]), "Leave out the release without noise"),
        (([1.0], [1.0]), r"auroc in \(0, 1\)"),
        (([math.inf], [0.5]), "finite"),
        (([1.0], [math.nan]), "finite"),
        (([1.0], [0.5], [0.0]), "auroc_error must be > 0"),
    ],
)
def test_a_fit_without_usable_points_is_refused(arguments, message):
    with pytest.raises(EvaluationError, match=message):
        fit_inverse_noise(*arguments)


@pytest.mark.parametrize("auroc", [-0.1, 1.1, math.nan])
def test_an_auroc_outside_the_unit_interval_is_refused(auroc):
    with pytest.raises(EvaluationError, match="auroc must be a number in"):
        sensitivity_index(auroc)


@pytest.mark.parametrize("value", ["x", None, math.nan, [0.1]])
def test_what_is_no_number_has_no_index_and_no_auroc(value):
    for function in (sensitivity_index, auroc_of_index):
        with pytest.raises(EvaluationError, match="must be a number"):
            function(value)
