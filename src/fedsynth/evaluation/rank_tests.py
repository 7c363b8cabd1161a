"""Ranks of several methods over the same blocks (folds, data sets): the numbers of a critical-difference diagram.

Friedman's test over all methods; if it rejects, a two-sided Wilcoxon signed-rank test of every pair, zeros by Pratt,
the family of pairs adjusted by Holm; methods that are pairwise not distinguished form cliques, which the diagram joins
by bars (Demšar 2006; Benavoli et al. 2016).

What the p-values do **not** mean: folds of one cross-validation share training data, so blocks are not independent
and p is descriptive. And the tests are blunt for few blocks: the smallest two-sided Wilcoxon p of b blocks is
2^(1-b), .00195 for ten folds, so that Holm at .05 cannot reject any of more than 25 pairs (eight methods have 28),
whatever the scores are. "Not distinguished" then says nothing about the methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedsynth.evaluation.bootstrap import holm_adjust
from fedsynth.evaluation.checks import EvaluationError, check_integer, check_number


@dataclass(frozen=True)
class FriedmanTest:
    """Friedman's chi-square statistic, corrected for ties, and its p-value; 0 and 1 if no block tells methods apart."""

    statistic: float
    p_value: float


@dataclass(frozen=True)
class PairComparison:
    """Two methods, the one of better mean rank first.

    Attributes:
        p_value: Two-sided Wilcoxon signed-rank.
        adjusted_p: After Holm over all pairs.
        is_distinguished: Friedman's test rejects, and ``adjusted_p`` is at most alpha.
    """

    better: str
    worse: str
    p_value: float
    adjusted_p: float
    is_distinguished: bool


@dataclass(frozen=True)
class CriticalDifference:
    """What a critical-difference diagram shows.

    Attributes:
        num_blocks: Folds or data sets.
        alpha: Level of both steps.
        mean_rank: Of each method, the best (smallest) first; ties share their ranks.
        friedman: The test over all methods. If it does not reject, no pair is distinguished.
        pairs: All pairs, by mean ranks.
        cliques: Largest groups of two or more methods none of which is distinguished from another, each by mean rank.
            A group may leave out a method that ranks between its members; a bar over it would be wrong there.
    """

    num_blocks: int
    alpha: float
    mean_rank: dict[str, float]
    friedman: FriedmanTest
    pairs: tuple[PairComparison, ...]
    cliques: tuple[tuple[str, ...], ...]

    @property
    def can_distinguish(self) -> bool:
        """Whether any scores at all in so few blocks could distinguish a pair (`can_reject`)."""
        return can_reject(self.num_blocks, len(self.pairs), self.alpha)


def smallest_wilcoxon_p(num_blocks: int) -> float:
    """2^(1-b): the two-sided p-value when one method is better in every one of b blocks.

    Raises:
        EvaluationError: If ``num_blocks`` is no integer >= 1.
    """
    return 2.0 ** (1 - check_integer(num_blocks, "num_blocks"))


def can_reject(num_blocks: int, num_pairs: int, alpha: float = 0.05) -> bool:
    """Whether Holm's first step can reject the clearest of ``num_pairs`` exact tests over ``num_blocks`` blocks.

    Raises:
        EvaluationError: Numbers below 1, or a level outside (0, 1).
    """
    level = check_number(alpha, "alpha", low=0.0, high=1.0, is_open=True)
    return smallest_wilcoxon_p(num_blocks) * check_integer(num_pairs, "num_pairs") <= level


def friedman_test(scores: Mapping[str, Sequence[float]]) -> FriedmanTest:
    """Friedman's test that all methods have the same distribution in every block.

    The p-value is that of the chi-square approximation, which is rough below about ten blocks.

    Args:
        scores: Method → its score in every block, blocks in one order; at least 3 methods and 2 blocks.

    Raises:
        EvaluationError: Too few methods or blocks, lengths that differ, scores that are not finite.
    """
    table = _score_table(scores)
    if bool((table == table[:, :1]).all()):
        return FriedmanTest(statistic=0.0, p_value=1.0)
    result = stats.friedmanchisquare(*table.T)
    return FriedmanTest(statistic=float(result.statistic), p_value=float(result.pvalue))


def signed_rank_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided Wilcoxon signed-rank p-value of paired scores; zero differences by Pratt; 1 if all are zero.

    Exact up to 13 blocks (by all changes of signs when differences tie or vanish) and, without either, up to 50;
    beyond that the normal approximation. Differences are compared to 12 digits of the largest score, so that rounding
    neither breaks ties nor makes zeros count.

    Raises:
        EvaluationError: Lengths that differ, fewer than 2 blocks, scores that are not finite.
    """
    table = _score_table({"first": first, "second": second}, min_methods=2)
    unit = float(np.abs(table).max()) or 1.0
    difference = np.round((table[:, 0] - table[:, 1]) / unit, 12)
    if not difference.any():
        return 1.0
    return float(stats.wilcoxon(difference, zero_method="pratt", alternative="two-sided").pvalue)


def critical_difference(
    scores: Mapping[str, Sequence[float]], *, alpha: float = 0.05, higher_is_better: bool = True
) -> CriticalDifference:
    """Mean ranks, the tests and the cliques of a critical-difference diagram.

    Args:
        scores: Method → its score in every block, blocks in one order; at least 3 methods and 2 blocks.
        alpha: Level of Friedman's test and of the adjusted pairwise ones.
        higher_is_better: Whether rank 1 goes to the largest score.

    Raises:
        EvaluationError: See `friedman_test`; or a level outside (0, 1).
    """
    level = check_number(alpha, "alpha", low=0.0, high=1.0, is_open=True, remedy="The usual value is 0.05.")
    table = _score_table(scores)
    rank = stats.rankdata(-table if higher_is_better else table, axis=1).mean(axis=0)
    by_name = dict(zip(scores, rank.tolist(), strict=True))
    names = sorted(by_name, key=lambda name: by_name[name])
    friedman = friedman_test(scores)
    p_values = {pair: signed_rank_p(scores[pair[0]], scores[pair[1]]) for pair in combinations(names, 2)}
    # fidelity: rank-test-family
    adjusted = holm_adjust({str(row): p for row, p in enumerate(p_values.values())})
    pairs = tuple(
        PairComparison(better, worse, p, corrected, friedman.p_value <= level and corrected <= level)
        for ((better, worse), p), corrected in zip(p_values.items(), adjusted.values(), strict=True)
    )
    return CriticalDifference(
        num_blocks=len(table),
        alpha=level,
        mean_rank={name: by_name[name] for name in names},
        friedman=friedman,
        pairs=pairs,
        cliques=_cliques(names, pairs),
    )


def _cliques(names: list[str], pairs: Sequence[PairComparison]) -> tuple[tuple[str, ...], ...]:
    """Maximal cliques of two or more methods in the graph of pairs that are not distinguished (Bron and Kerbosch)."""
    joined: dict[str, set[str]] = {name: set() for name in names}
    for pair in pairs:
        if not pair.is_distinguished:
            joined[pair.better].add(pair.worse)
            joined[pair.worse].add(pair.better)
    found: list[list[int]] = []

    def extend(clique: set[str], candidates: set[str], excluded: set[str]) -> None:
        if not candidates and not excluded and len(clique) > 1:
            found.append(sorted(names.index(name) for name in clique))
        for name in sorted(candidates):
            extend(clique | {name}, candidates & joined[name], excluded & joined[name])
            candidates = candidates - {name}
            excluded = excluded | {name}

    extend(set(), set(names), set())
    return tuple(tuple(names[row] for row in clique) for clique in sorted(found))


def _score_table(scores: Mapping[str, Sequence[float]], *, min_methods: int = 3) -> NDArray[np.float64]:
    """Scores as [block, method], validated."""
    if len(scores) < min_methods:
        raise EvaluationError(
            f"scores must hold at least {min_methods} methods, got {sorted(scores)}. "
            "Compare two methods with signed_rank_p."
        )
    lengths = {name: len(values) for name, values in scores.items()}
    if len(set(lengths.values())) > 1 or min(lengths.values()) < 2:
        raise EvaluationError(
            f"Every method must have a score in each of at least 2 blocks, got {lengths} of them. "
            "Run the missing folds."
        )
    table = np.array(
        [
            [
                check_number(value, f"the score of {name!r} in block {block}")
                for block, value in enumerate(values)
            ]
            for name, values in scores.items()
        ]
    ).T
    if not np.isfinite(table).all():
        raise EvaluationError("scores must be finite, got an infinite one. Leave out the run that diverged.")
    return table
