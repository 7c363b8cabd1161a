"""Ranks of the methods over folds as plain values, for the report's critical-difference diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from fedsynth.evaluation import can_reject, critical_difference, signed_rank_p


def rank_summary(scores: Mapping[str, Sequence[float]], alpha: float) -> dict[str, Any]:
    """Mean ranks (1 is best), tests and cliques; two methods have one Wilcoxon test and no Friedman test.

    The folds of one cross-validation share training images: p-values are descriptive.

    Args:
        scores: Method → score in every fold, larger is better.
        alpha: Level of the tests.
    """
    if len(scores) > 2:
        found = critical_difference(scores, alpha=alpha)
        return {
            "alpha": alpha,
            "num_folds": found.num_blocks,
            "mean_ranks": found.mean_rank,
            "friedman": vars(found.friedman),
            "pairs": [vars(pair) for pair in found.pairs],
            "cliques": [list(clique) for clique in found.cliques],
            "can_distinguish": found.can_distinguish,
        }
    by_fold = [stats.rankdata([-score for score in fold]) for fold in zip(*scores.values(), strict=True)]
    ranks = {
        name: float(sum(fold[row] for fold in by_fold) / len(by_fold)) for row, name in enumerate(scores)
    }
    better, worse = sorted(ranks, key=lambda name: ranks[name])
    p_value = signed_rank_p(scores[better], scores[worse])
    pair = {
        "better": better,
        "worse": worse,
        "p_value": p_value,
        "adjusted_p": p_value,
        "is_distinguished": p_value <= alpha,
    }
    return {
        "alpha": alpha,
        "num_folds": len(by_fold),
        "mean_ranks": {name: ranks[name] for name in (better, worse)},
        "friedman": None,
        "pairs": [pair],
        "cliques": [] if pair["is_distinguished"] else [[better, worse]],
        "can_distinguish": can_reject(len(by_fold), 1, alpha),
    }
