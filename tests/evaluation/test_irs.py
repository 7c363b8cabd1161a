"""Image Retrieval Score: by hand, against a known number of reachable records, saturation, equal sizes."""

from __future__ import annotations

import pytest
import torch

from fedsynth.evaluation import EvaluationError, image_retrieval_score, relative_retrieval_score


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _points(n: int, seed: int, d: int = 3) -> torch.Tensor:
    return torch.randn(n, d, generator=_generator(seed), dtype=torch.float64)


def _retrieving(rows: torch.Tensor, train: torch.Tensor, seed: int = 7) -> torch.Tensor:
    """Points that retrieve the given rows."""
    return train[rows] + 1e-9 * _points(len(rows), seed, train.shape[1])


def test_counts_by_hand():
    train = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    score = image_retrieval_score(torch.tensor([[-9.0], [0.4], [1.1], [3.2], [2.9]]), train)
    assert (score.num_queries, score.num_train, score.num_distinct) == (5, 4, 3)
    assert (score.alpha, score.irs_alpha) == (5 / 4, 3 / 4)
    # E[K | 3] = 3 (1 - (2/3)^5) = 2.60 <= 3 < 4 (1 - (3/4)^5) = 3.05 = E[K | 4].
    assert (score.num_reachable, score.irs_inf, score.is_saturated) == (3, 0.75, False)
    assert score.saturation_distinct == 4


def test_distinct_records_equal_those_of_all_pairwise_distances():
    query, train = _points(200, 0), _points(150, 1)
    nearest = torch.cdist(query, train).argmin(dim=1)
    assert image_retrieval_score(query, train).num_distinct == len(nearest.unique())


@pytest.mark.parametrize("reachable", [100, 300, 700])
def test_the_number_of_records_that_are_reached_is_recovered(reachable):
    train = _points(1_000, 2)
    drawn = torch.randint(reachable, (600,), generator=_generator(reachable))
    score = image_retrieval_score(_retrieving(drawn, train), train, tail=0.001)
    low, high = score.irs_inf_interval
    # 99.8 % intervals.
    assert low <= reachable / 1_000 <= high
    assert low <= score.irs_inf <= high
    assert not score.is_saturated
    assert not score.is_more_even_than_chance


def test_one_query_per_training_record_is_saturated_and_more_even_than_chance():
    train = _points(300, 3)
    score = image_retrieval_score(_retrieving(torch.arange(200), train), train)
    assert (score.num_distinct, score.irs_inf, score.irs_inf_interval[1]) == (200, 1.0, 1.0)
    assert score.is_saturated
    assert score.is_more_even_than_chance


def test_saturation_begins_at_the_stated_number_of_distinct_records():
    train = _points(100, 4)
    expected = image_retrieval_score(_points(80, 5), train).saturation_distinct
    for distinct in range(expected - 3, expected + 3):
        rows = torch.arange(80).clamp(max=distinct - 1)
        score = image_retrieval_score(_retrieving(rows, train), train)
        assert score.num_distinct == distinct
        assert score.is_saturated == (distinct >= expected) == (score.num_reachable == 100)


def test_copies_are_as_diverse_as_real_records():
    # What the score does not see: a release of the training records themselves reaches all of them.
    train = _points(400, 6)
    drawn = torch.randint(400, (200,), generator=_generator(8))
    assert image_retrieval_score(train[drawn], train).irs_inf > 0.6


def test_a_test_set_relative_to_itself_is_one():
    train, test = _points(500, 9), _points(120, 10)
    result = relative_retrieval_score(test, test, train, generator=_generator())
    assert result.irs_inf_a == 1.0
    assert result.ceiling == pytest.approx(1 / image_retrieval_score(test, train).irs_inf)


@pytest.mark.parametrize(("num_synthetic", "num_test"), [(250, 100), (100, 250), (70, 70)])
def test_both_sets_are_scored_in_chunks_of_the_smaller_one(num_synthetic, num_test):
    train = _points(500, 11)
    result = relative_retrieval_score(
        _points(num_synthetic, 12), _points(num_test, 13), train, generator=_generator()
    )
    size = min(num_synthetic, num_test)
    assert {score.num_queries for score in (*result.synthetic, *result.test)} == {size}
    assert (len(result.synthetic), len(result.test)) == (num_synthetic // size, num_test // size)
    reachable = [score.num_reachable for score in result.synthetic]
    assert result.irs_inf_a == pytest.approx(
        sum(reachable) / len(reachable) / (sum(s.num_reachable for s in result.test) / len(result.test))
    )


def test_a_collapsed_generator_scores_below_a_fresh_sample_of_the_real_law():
    train, test = _points(800, 14), _points(200, 15)
    fresh = relative_retrieval_score(_points(200, 16), test, train, generator=_generator())
    collapsed = relative_retrieval_score(_points(200, 17) * 0.2, test, train, generator=_generator())
    # The relative standard error of one estimate at K = 160 of n = 200 is about 10 %.
    assert fresh.irs_inf_a == pytest.approx(1.0, abs=0.4)
    assert collapsed.irs_inf_a < 0.5 * fresh.irs_inf_a


def test_a_saturated_release_sits_at_the_ceiling():
    train, test = _points(300, 18), _points(100, 19)
    release = _retrieving(torch.arange(300), train)
    result = relative_retrieval_score(release, test, train, generator=_generator())
    assert result.saturated_share == 1.0
    assert result.irs_inf_a == pytest.approx(result.ceiling)
    assert result.ceiling > 1


def test_chunks_do_not_follow_the_order_of_records():
    # Half of the sample retrieves one record: in the order given the first chunk would reach nothing else.
    train = _points(400, 20)
    rows = torch.cat([torch.zeros(150, dtype=torch.int64), torch.arange(200, 350)])
    synthetic, test = _retrieving(rows, train), _points(100, 21)
    result = relative_retrieval_score(synthetic, test, train, generator=_generator())
    # About 50 of 100 are spread, with a standard deviation of 4.
    assert [score.num_distinct for score in result.synthetic] == pytest.approx([51] * 3, abs=16)
    assert relative_retrieval_score(synthetic, test, train, generator=_generator()) == result


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": torch.zeros(3, 2)}, "test and train must have the same number of features"),
        ({"synthetic": torch.zeros(0, 3)}, "synthetic must hold at least 1"),
        ({"train": torch.zeros(4)}, "train must have shape"),
        ({"generator": None}, "generator must be a torch.Generator"),
        ({"bounds": "none"}, "bounds must be"),
        ({"tail": 0.7}, "tail"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = {"synthetic": _points(4, 0), "test": _points(4, 1), "train": _points(4, 2)}
    with pytest.raises(EvaluationError, match=message):
        relative_retrieval_score(**(arguments | {"generator": _generator()} | changes))
