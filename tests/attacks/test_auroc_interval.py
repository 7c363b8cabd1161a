"""Intervals of membership AUROCs: the estimate is the AUROC, replicates resample each group by itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedsynth.attacks.auroc_interval import membership_auroc_intervals
from fedsynth.evaluation import EvaluationError, auroc

FEW = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(size: int, seed: int, shift: float = 0.0) -> Tensor:
    return torch.randn(size, generator=stream(seed), dtype=torch.float64) + shift


@settings(max_examples=60, deadline=None)
@given(FEW, FEW)
def test_the_estimate_is_the_auroc_with_ties_counting_half(inside: list[float], outside: list[float]) -> None:
    found = membership_auroc_intervals(
        {"s": torch.tensor(inside)}, {"s": torch.tensor(outside)}, generator=stream(), num_replicates=3
    )["s"]
    truth = [1] * len(inside) + [0] * len(outside)
    assert found.estimate == pytest.approx(roc_auc_score(truth, inside + outside), abs=1e-12)
    assert found.low <= found.high


def test_replicates_are_aurocs_of_the_drawn_records() -> None:
    # The same draws, evaluated one by one by the plain AUROC.
    inside, outside = normal(9, 1).round(decimals=1), normal(7, 2).round(decimals=1)
    found = membership_auroc_intervals(
        {"s": inside}, {"s": outside}, generator=stream(5), num_replicates=40, confidence=0.8
    )["s"]
    draws = stream(5)
    members = torch.randint(9, (40, 9), generator=draws)
    others = torch.randint(7, (40, 7), generator=draws)
    truth = torch.arange(16) < 9
    wanted = torch.tensor(
        [
            auroc(torch.cat([inside[row], outside[column]]), truth)
            for row, column in zip(members, others, strict=True)
        ],
        dtype=torch.float64,
    )
    low, high = wanted.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


def test_interval_width_is_that_of_the_asymptotic_variance() -> None:
    # DeLong et al. (1988): Var = Var_i(V10) / n + Var_j(V01) / m.
    inside, outside = normal(400, 3, 0.5), normal(200, 4)
    beats = (inside[:, None] > outside[None, :]).double()
    std = math.sqrt(float(beats.mean(1).var()) / 400 + float(beats.mean(0).var()) / 200)
    found = membership_auroc_intervals({"s": inside}, {"s": outside}, generator=stream(), num_replicates=2000)
    # The 2.5 % quantile of 2,000 replicates has a standard error of about 4 % of the half width.
    assert found["s"].high - found["s"].low == pytest.approx(2 * 1.96 * std, rel=0.12)


def test_all_scores_meet_the_same_replicates() -> None:
    inside, outside = normal(50, 1), normal(40, 2)
    found = membership_auroc_intervals(
        {"one": inside, "monotone": inside.exp(), "reversed": -inside},
        {"one": outside, "monotone": outside.exp(), "reversed": -outside},
        generator=stream(),
        num_replicates=100,
    )
    assert found["one"] == found["monotone"]
    assert found["reversed"].low == pytest.approx(1 - found["one"].high)
    assert found["reversed"].estimate == pytest.approx(1 - found["one"].estimate)


def test_chunks_change_nothing_but_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = {"s": normal(30, 1, 9.0)}, {"s": normal(30, 2)}
    monkeypatch.setattr("fedsynth.attacks.auroc_interval.CHUNK_ELEMENTS", 120)
    found = membership_auroc_intervals(inside, outside, generator=stream(), num_replicates=11)
    assert found["s"] == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("member", "non_member", "changes", "message"),
    [
        ({}, {}, {}, "must hold the same scores"),
        ({"a": [0.0]}, {"b": [0.0]}, {}, "must hold the same scores"),
        ({"a": []}, {"a": [0.0]}, {}, "one value per record"),
        ({"a": [0.0], "b": [0.0, 1.0]}, {"a": [0.0], "b": [0.0]}, {}, "one value per record"),
        ({"a": [math.nan]}, {"a": [0.0]}, {}, "1 NaN or infinite"),
        ({"a": [0.0]}, {"a": [math.inf]}, {}, "non-member a holds 1"),
        ({"a": [0.0]}, {"a": [0.0]}, {"num_replicates": 0}, "num_replicates must be"),
        ({"a": [0.0]}, {"a": [0.0]}, {"confidence": 1.0}, "confidence must be"),
    ],
)
def test_bad_input_is_refused_by_name(
    member: dict[str, list[float]],
    non_member: dict[str, list[float]],
    changes: dict[str, float],
    message: str,
) -> None:
    groups = ({name: torch.tensor(score) for name, score in group.items()} for group in (member, non_member))
    with pytest.raises(EvaluationError, match=message):
        membership_auroc_intervals(*groups, generator=stream(), **changes)  # type: ignore[arg-type]
