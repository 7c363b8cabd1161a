"""Ranks over folds: SciPy, statsmodels and networkx as references, exact p-values, what ten folds can show at all."""

from __future__ import annotations

import math
from itertools import combinations, product

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from fedsynth.evaluation import (
    EvaluationError,
    can_reject,
    critical_difference,
    friedman_test,
    signed_rank_p,
    smallest_wilcoxon_p,
)


def _scores(
    shift: list[float], num_blocks: int = 10, seed: int = 0, spread: float = 1.0
) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    block = draw.normal(size=num_blocks)
    return {f"m{row}": block + mean + spread * draw.normal(size=num_blocks) for row, mean in enumerate(shift)}


def test_friedman_statistic_is_its_formula_without_ties():
    scores = _scores([0.0, 0.5, 1.0, 0.2], num_blocks=12)
    table = np.array(list(scores.values()))
    rank_sum = stats.rankdata(table, axis=0).sum(axis=1)
    b, k = table.shape[1], table.shape[0]
    statistic = 12 / (b * k * (k + 1)) * (rank_sum**2).sum() - 3 * b * (k + 1)
    result = friedman_test(scores)
    assert result.statistic == pytest.approx(statistic)
    assert result.p_value == pytest.approx(stats.chi2.sf(statistic, k - 1))


def test_methods_that_always_tie_are_one_clique():
    result = critical_difference({name: [0.5, 0.7, 0.6] for name in "abc"})
    assert (result.friedman.statistic, result.friedman.p_value) == (0.0, 1.0)
    assert result.mean_rank == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert result.cliques == (("a", "b", "c"),)
    assert {pair.p_value for pair in result.pairs} == {1.0}


def _all_sign_changes(difference: np.ndarray) -> float:
    """Two-sided p by enumeration: ranks of all |d|, zeros included, then only those of nonzero d (Pratt)."""
    rank = stats.rankdata(np.abs(difference))[difference != 0]
    sign = np.sign(difference[difference != 0])
    centered = abs((rank * sign).sum())
    sums = [abs((rank * signs).sum()) for signs in product((-1, 1), repeat=len(rank))]
    return float(np.mean(np.array(sums) >= centered - 1e-9))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-4, 4), min_size=2, max_size=9))
def test_p_value_counts_all_changes_of_sign(difference):
    first = np.array(difference, dtype=float)
    assert signed_rank_p(first, np.zeros(len(first))) == pytest.approx(_all_sign_changes(first))


def test_p_value_ignores_rounding_and_the_unit():
    first, second = np.array([0.3, 0.5, 0.7, 0.9, 0.4]), np.array([0.2, 0.4, 0.8, 0.9, 0.6])
    expected = _all_sign_changes(np.array([1.0, 1.0, -1.0, 0.0, -2.0]))
    assert {signed_rank_p(first * unit, second * unit) for unit in (1, 100, 1e-3)} == {expected}


@pytest.mark.parametrize("num_blocks", range(2, 13))
def test_smallest_p_is_that_of_a_method_which_always_wins(num_blocks):
    always = signed_rank_p(np.arange(1, num_blocks + 1) / 7, np.zeros(num_blocks))
    assert always == pytest.approx(smallest_wilcoxon_p(num_blocks))


def test_ten_folds_cannot_reject_any_of_more_than_25_pairs():
    assert smallest_wilcoxon_p(10) == 1 / 512 == pytest.approx(0.00195, abs=5e-6)
    assert can_reject(10, 25)
    assert not can_reject(10, 26)
    # Seven methods make 21 pairs, eight make 28: even methods in the same order in every fold stay one clique.
    for count in (7, 8):
        scores = _scores([5.0 * row for row in range(count)], spread=0.01)
        result = critical_difference(scores)
        assert {pair.p_value for pair in result.pairs} == {1 / 512}
        assert result.can_distinguish == (count == 7)
        assert {pair.is_distinguished for pair in result.pairs} == {count == 7}
        assert result.cliques == (() if count == 7 else (tuple(f"m{row}" for row in reversed(range(8))),))


@pytest.mark.parametrize("seed", range(5))
def test_ranks_and_adjusted_p_values_equal_the_references(seed):
    scores = _scores([0.0, 2.0, 2.2, 4.0, 4.1], seed=seed)
    result = critical_difference(scores)
    table = np.array(list(scores.values()))
    rank = dict(zip(scores, stats.rankdata(-table, axis=0).mean(axis=1), strict=True))
    assert result.mean_rank == pytest.approx(rank)
    assert list(result.mean_rank.values()) == sorted(rank.values())
    raw = [
        stats.wilcoxon(scores[pair.better], scores[pair.worse], zero_method="pratt", method="exact").pvalue
        for pair in result.pairs
    ]
    assert [pair.p_value for pair in result.pairs] == pytest.approx(raw)
    reject, adjusted, *_ = multipletests(raw, alpha=0.05, method="holm")
    assert [pair.adjusted_p for pair in result.pairs] == pytest.approx(adjusted)
    assert result.friedman.p_value < 0.05
    assert [pair.is_distinguished for pair in result.pairs] == reject.tolist()
    assert any(reject)
    assert not all(reject)


@pytest.mark.parametrize("seed", range(8))
def test_cliques_are_those_of_networkx(seed):
    result = critical_difference(
        _scores([0.0, 0.8, 1.6, 2.4, 3.2, 4.0], num_blocks=14, seed=seed, spread=0.8)
    )
    graph = networkx.Graph((pair.better, pair.worse) for pair in result.pairs if not pair.is_distinguished)
    expected = {frozenset(clique) for clique in networkx.find_cliques(graph)}
    assert {frozenset(clique) for clique in result.cliques} == expected
    order = list(result.mean_rank)
    assert all(list(clique) == sorted(clique, key=order.index) for clique in result.cliques)


def test_no_pair_is_distinguished_unless_friedman_rejects():
    # The first two differ in all ten blocks, but eight like methods hide it from the omnibus test.
    scores = _scores([0.0] * 9, seed=3)
    scores["twin"] = scores["m0"] - 1e-6 * np.arange(1, 11)
    result = critical_difference(scores, alpha=0.12)
    twins = next(pair for pair in result.pairs if {pair.better, pair.worse} == {"m0", "twin"})
    assert twins.adjusted_p <= 0.12 < result.friedman.p_value
    assert not twins.is_distinguished
    assert len(result.cliques) == 1
    assert len(result.cliques[0]) == 10


@given(st.permutations(range(4)), st.floats(-5, 5), st.floats(0.1, 10))
@settings(deadline=None, max_examples=20)
def test_order_of_methods_offset_and_unit_change_nothing(order, offset, unit):
    scores = _scores([0.0, 1.0, 2.0, 3.0])
    names = list(scores)
    moved = {names[row]: scores[names[row]] * unit + offset for row in order}
    assert critical_difference(moved) == critical_difference(scores)


def test_lower_scores_win_where_lower_is_better():
    scores = _scores([0.0, 1.0, 3.0])
    up = critical_difference(scores)
    down = critical_difference({name: -values for name, values in scores.items()}, higher_is_better=False)
    assert up == down
    assert next(iter(up.mean_rank)) == "m2"


def test_one_pair_is_reported_per_two_methods_the_better_first():
    result = critical_difference(_scores([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert [(pair.better, pair.worse) for pair in result.pairs] == list(combinations(result.mean_rank, 2))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"a": [1.0, 2.0], "b": [1.0, 2.0]}, "at least 3 methods"),
        ({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0]}, "Run the missing folds"),
        ({"a": [1.0], "b": [1.0], "c": [1.0]}, "at least 2 blocks"),
        ({"a": [1.0, 2.0], "b": [1.0, math.nan], "c": [1.0, 2.0]}, "the score of 'b' in block 1"),
        ({"a": [1.0, 2.0], "b": [1.0, math.inf], "c": [1.0, 2.0]}, "must be finite"),
        ({"a": [1.0, 2.0], "b": ["x", 1.0], "c": [1.0, 2.0]}, "the score of 'b' in block 0"),
    ],
)
def test_incomplete_tables_are_refused(scores, message):
    for function in (friedman_test, critical_difference):
        with pytest.raises(EvaluationError, match=message):
            function(scores)


def test_bad_settings_are_refused():
    for alpha in (0.0, 1.0, math.nan, "0.05"):
        with pytest.raises(EvaluationError, match="alpha must be a number"):
            critical_difference(_scores([0.0, 1.0, 2.0]), alpha=alpha)
        with pytest.raises(EvaluationError, match="alpha must be a number"):
            can_reject(10, 3, alpha)
    with pytest.raises(EvaluationError, match="num_blocks must be an integer >= 1"):
        smallest_wilcoxon_p(0)
    with pytest.raises(EvaluationError, match="num_pairs must be an integer >= 1"):
        can_reject(10, 0)
    with pytest.raises(EvaluationError, match="Run the missing folds"):
        signed_rank_p([1.0, 2.0], [1.0])
