"""Draws of participants: what they keep, and that weights stand for resampled records."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.evaluation import (
    EvaluationError,
    auroc,
    participant_means,
    replicate_differences,
    replicate_intervals,
)
from fedsynth.evaluation import participant_bootstrap as module
from fedsynth.evaluation.participant_bootstrap import (
    ParticipantDraw,
    draw_participants,
    participant_constant,
    weighted_attack_auroc,
)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def joined(num_replicates: int, seed: int = 0, **changes: object) -> ParticipantDraw:
    """All draws, the sample first."""
    sizes = {"train_client": torch.tensor([3, 0, 3, 0, 0, 7]), "num_val": 4, "num_test": 9, **changes}
    parts = draw_participants(**sizes, num_replicates=num_replicates, generator=generator(seed))  # type: ignore[arg-type]
    return ParticipantDraw(*(torch.cat(weights) for weights in zip(*parts, strict=True)))


def test_the_sample_comes_first_and_every_client_keeps_its_participants() -> None:
    drawn = joined(300)
    for weight in drawn:
        assert len(weight) == 301
        assert (weight[0] == 1).all()
        assert (weight >= 0).all()
        assert (weight.sum(dim=1) == weight.shape[1]).all()
    assert (drawn.train[:, [1, 3, 4]].sum(dim=1) == 3).all()  # client 0
    assert (drawn.train[:, [0, 2]].sum(dim=1) == 2).all()  # client 3
    assert (drawn.train[:, 5] == 1).all()  # the only participant of client 7


def test_every_participant_is_drawn_once_on_average() -> None:
    drawn = joined(4000, seed=1)
    # A multiplicity has variance below 1: the mean of 4,000 is within 5 / sqrt(4000) = 0.08 of 1.
    for weight in drawn:
        assert (weight[1:].mean(dim=0) - 1).abs().max() < 0.08
    # Multinomial with 9 draws over 9 participants: variance 1 - 1/9; 0.08 is four of its standard errors.
    assert drawn.test[1:].var(dim=0).mean() == pytest.approx(1 - 1 / 9, abs=0.08)


def test_draws_do_not_depend_on_the_chunks_nor_groups_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = joined(50)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 7 * 9)
    for one, other in zip(whole, joined(50), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole.train, joined(50, num_test=30).train)
    assert not torch.equal(whole.test[1:], joined(50, seed=1).test[1:])


scores = st.lists(st.sampled_from([0.1, 0.2, 0.2, 0.5, 0.9, 1.0]), min_size=1, max_size=12)


@settings(max_examples=60)
@given(scores, scores, st.integers(0, 10**6))
def test_a_weighted_auroc_is_that_of_repeated_records(
    members: list[float], others: list[float], seed: int
) -> None:
    member, other = (torch.tensor(values, dtype=torch.float64) for values in (members, others))
    stream = generator(seed)
    member_weight = torch.randint(3, (4, len(members)), generator=stream)
    other_weight = torch.randint(3, (4, len(others)), generator=stream)
    found = weighted_attack_auroc(member, other, member_weight.double(), other_weight.double())
    for replicate in range(4):
        inside = member.repeat_interleave(member_weight[replicate])
        outside = other.repeat_interleave(other_weight[replicate])
        if not len(inside) or not len(outside):
            assert found[replicate].isnan()
            continue
        is_member = torch.arange(len(inside) + len(outside)) < len(inside)
        wanted = auroc(torch.cat([inside, outside]), is_member)
        assert float(found[replicate]) == pytest.approx(wanted, abs=1e-12)


def test_means_are_over_the_records_of_a_participant_in_any_order() -> None:
    values = torch.randn(2, 7, 3, generator=generator(2))
    whom = torch.tensor([9, 4, 9, 1, 4, 9, 9])
    found = participant_means(values, whom)
    assert found.dtype == torch.float64
    for row, number in enumerate((1, 4, 9)):
        torch.testing.assert_close(found[:, row], values[:, whom == number].double().mean(dim=1))
    order = torch.randperm(7, generator=generator(3))
    torch.testing.assert_close(participant_means(values[:, order], whom[order]), found)


def test_what_all_records_of_a_participant_share() -> None:
    whom = torch.tensor([9, 4, 9, 1])
    assert participant_constant(torch.tensor([5, 6, 5, 7]), whom, "label").tolist() == [7, 6, 5]
    with pytest.raises(EvaluationError, match=r"label must be the same .* of participant 9 differ"):
        participant_constant(torch.tensor([5, 6, 4, 7]), whom, "label")


def test_intervals_are_quantiles_and_undefined_replicates_are_counted() -> None:
    values = torch.cat([torch.tensor([7.0]), torch.arange(101.0), torch.full((3,), torch.nan)]).double()
    interval = replicate_intervals({"x": values})["x"]
    assert (interval.estimate, interval.num_undefined) == (7.0, 3)
    assert (interval.low, interval.high) == pytest.approx((2.5, 97.5))


def test_a_system_does_not_differ_from_itself_and_swapping_turns_signs() -> None:
    one = {"x": torch.rand(200, generator=generator(4), dtype=torch.float64)}
    other = {"x": torch.rand(200, generator=generator(5), dtype=torch.float64), "only here": one["x"]}
    same = replicate_differences(one, one)["x"]
    assert (same.estimate, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    there, back = replicate_differences(one, other), replicate_differences(other, one)
    assert there.keys() == back.keys() == {"x"}
    assert there["x"].estimate == -back["x"].estimate
    assert there["x"].low == pytest.approx(-back["x"].high)
    assert there["x"].p_value == back["x"].p_value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_val": 0}, "num_val must be an integer >= 1"),
        ({"num_test": 2.5}, "num_test must be an integer >= 1"),
        ({"train_client": torch.zeros(0, dtype=torch.int64)}, "the number of training participants"),
        ({"num_replicates": 0}, "num_replicates must be an integer >= 1"),
        ({"generator": None}, "generator must be a torch.Generator"),
    ],
)
def test_impossible_draws_are_refused(changes: dict[str, object], message: str) -> None:
    arguments = {
        "train_client": torch.zeros(3, dtype=torch.int64), "num_val": 2, "num_test": 2, "num_replicates": 2,
        "generator": generator(0), **changes,
    }  # fmt: skip
    with pytest.raises(EvaluationError, match=message):
        next(draw_participants(**arguments))  # type: ignore[arg-type]


def test_unsound_replicates_are_refused() -> None:
    values = torch.rand(5, dtype=torch.float64)
    with pytest.raises(EvaluationError, match="confidence must"):
        replicate_intervals({"x": values}, confidence=1.0)
    with pytest.raises(EvaluationError, match="at least one replicate"):
        replicate_intervals({"x": values[:1]})
    with pytest.raises(EvaluationError, match="got 4 and 3"):
        replicate_differences({"x": values}, {"x": values[:4]})
