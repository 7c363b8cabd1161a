"""Self-retrieval: brute force, the release of the records themselves, an independent sample, repeated records."""

from __future__ import annotations

import pytest
import torch

from fedsynth.attacks import self_retrieval
from fedsynth.evaluation import EvaluationError


def _points(n: int, seed: int, d: int = 4) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_ranks_are_those_of_all_pairwise_distances():
    train, source = _points(80, 0), torch.arange(40) * 2
    release = train[source] + 0.7 * _points(40, 1)
    distance = torch.cdist(release, train)
    expected = (distance <= distance.gather(1, source[:, None]) + 1e-12).sum(dim=1)
    result = self_retrieval(release, train, source)
    assert torch.equal(result.rank, expected)
    assert result.retrieved.successes == int((distance.argmin(dim=1) == source).sum())
    assert 0 < result.retrieved.share < 1
    assert (result.retrieved.trials, result.chance, result.num_tied) == (40, 1 / 80, 0)


def test_releasing_the_records_retrieves_every_one():
    train = _points(150, 2)
    result = self_retrieval(train.clone(), train, torch.arange(150))
    assert (result.retrieved.share, result.retrieved.high) == (1.0, 1.0)


def test_an_independent_sample_retrieves_at_chance():
    train = _points(50, 3)
    result = self_retrieval(_points(2_000, 4), train, torch.arange(2_000) % 50)
    assert result.retrieved.low <= result.chance <= result.retrieved.high
    # Ranks are uniform on 1 … 50: standard error of the mean .32.
    assert float(result.rank.double().mean()) == pytest.approx(25.5, abs=1.3)


def test_the_rate_falls_as_the_release_moves_away_from_its_source():
    train, noise = _points(200, 5), _points(200, 6)
    rates = [
        self_retrieval(train + size * noise, train, torch.arange(200)).retrieved.share
        for size in (0.01, 0.3, 1.0, 10.0)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.95 > 0.05 > rates[-1]


def test_repeated_records_are_ties_and_no_retrievals():
    train = torch.tensor([[0.0], [0.0], [5.0]])
    result = self_retrieval(torch.tensor([[0.1], [0.1], [4.0]]), train, torch.tensor([0, 1, 2]))
    assert result.rank.tolist() == [2, 2, 1]
    assert (result.retrieved.successes, result.num_tied) == (1, 2)


def test_a_collapsed_encoder_retrieves_nothing():
    result = self_retrieval(torch.ones(6, 3), torch.ones(9, 3), torch.arange(6))
    assert (result.retrieved.share, result.num_tied) == (0.0, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": torch.zeros(1, 4)}, "train must hold at least 2"),
        ({"release": torch.zeros(3, 5)}, "release and train must have the same"),
        ({"source": torch.tensor([0, 1])}, r"one row number of train per release \(3\)"),
        ({"source": torch.tensor([0.0, 1.0, 2.0])}, "one row number"),
        ({"source": torch.tensor([0, 1, 8])}, r"source must lie in \[0, 7\].*got 0 to 8"),
        ({"source": torch.tensor([0, -1, 2])}, "got -1 to 2"),
        ({"confidence": 0}, "confidence"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = {"release": _points(3, 0), "train": _points(8, 1), "source": torch.arange(3)} | changes
    with pytest.raises(EvaluationError, match=message):
        self_retrieval(**arguments)
