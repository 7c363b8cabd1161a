"""The classes give the functions' values, bit for bit, however they are fed."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.evaluation import (
    EvaluationError,
    auroc,
    decision_metrics,
    normalized_privacy_score,
    privacy_performance_score,
)
from fedsynth.evaluation.streaming_privacy import StreamingDecisionMetrics, StreamingPrivacyPerformance

SIZE = 30


def inputs() -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    return {
        "predicted": torch.randint(2, (SIZE,), generator=stream),
        "target": torch.randint(2, (SIZE,), generator=stream),
        "member_score": torch.rand(SIZE, generator=stream).mul(8).round() / 8 + 0.2,
        "non_member_score": torch.rand(SIZE, generator=stream).mul(8).round() / 8,
    }


def expected() -> dict[str, float]:
    given = inputs()
    uar = decision_metrics(given["predicted"], given["target"])["uar"]
    attack = auroc(
        torch.cat([given["member_score"], given["non_member_score"]]), torch.arange(2 * SIZE) < SIZE
    )
    rho = normalized_privacy_score(attack)
    return {
        "uar": uar, "attack_auroc": attack, "privacy_score": rho, "pps": privacy_performance_score(uar, rho),
    }  # fmt: skip


def fed(cuts: list[int], *, apart: bool = False) -> StreamingPrivacyPerformance:
    metric = StreamingPrivacyPerformance()
    for start, stop in itertools.pairwise([0, *sorted(cuts), SIZE]):
        batch = {name: values[start:stop] for name, values in inputs().items()}
        if apart:
            metric.update(predicted=batch["predicted"], target=batch["target"])
            metric.update(member_score=batch["member_score"])
            metric.update(non_member_score=batch["non_member_score"])
        else:
            metric.update(**batch)
    return metric


def floats(values: dict[str, torch.Tensor]) -> dict[str, float]:
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in values.values())
    return {name: float(value) for name, value in values.items()}


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, SIZE), max_size=6), apart=st.booleans())
def test_batches_of_any_size_give_the_function_value_bit_for_bit(cuts: list[int], apart: bool) -> None:
    assert floats(fed(cuts, apart=apart).compute()) == expected()


@given(cuts=st.lists(st.integers(0, SIZE), max_size=6))
def test_decision_metrics_do_not_depend_on_the_batches(cuts: list[int]) -> None:
    metric, data = StreamingDecisionMetrics(), inputs()
    for start, stop in itertools.pairwise([0, *sorted(cuts), SIZE]):
        metric.update(predicted=data["predicted"][start:stop], target=data["target"][start:stop])
    assert floats(metric.compute()) == decision_metrics(data["predicted"], data["target"])


def test_reset_forgets_and_pickling_remembers() -> None:
    metric = fed([3])
    metric.reset()
    metric.update(**inputs())
    assert floats(pickle.loads(pickle.dumps(metric)).compute()) == expected()


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_what_was_never_given_is_said() -> None:
    with pytest.raises(EvaluationError, match="no predicted was given yet"):
        StreamingDecisionMetrics().compute()
    metric = StreamingPrivacyPerformance()
    metric.update(predicted=torch.tensor([0, 1]), target=torch.tensor([0, 1]))
    with pytest.raises(EvaluationError, match="no member_score was given yet"):
        metric.compute()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"predicted": torch.tensor([1])}, "must be given together"),
        ({"predicted": torch.tensor([0.4]), "target": torch.tensor([1])}, "only 0 and 1"),
        ({"predicted": torch.tensor([1, 0]), "target": torch.tensor([1])}, "one class per record"),
        ({"member_score": torch.tensor([1.0]), "non_member_score": torch.tensor([torch.nan])}, "NaN"),
        ({"member_score": torch.zeros(2, 2)}, r"must have shape \[records\]"),
    ],
)
def test_unsound_batches_are_refused_and_leave_the_state_alone(
    batch: dict[str, torch.Tensor], message: str
) -> None:
    metric = fed([])
    with pytest.raises(EvaluationError, match=message):
        metric.update(**batch)
    assert floats(metric.compute()) == expected()


def test_two_halves_merged_give_the_value_of_the_whole() -> None:
    # What gathering over processes does: concatenate the states, rank after rank.
    first, second = StreamingPrivacyPerformance(), StreamingPrivacyPerformance()
    first.update(**{name: values[:11] for name, values in inputs().items()})
    second.update(**{name: values[11:] for name, values in inputs().items()})
    first.merge_state({name: getattr(second, name) for name in second.inputs})
    assert floats(first.compute()) == expected()
