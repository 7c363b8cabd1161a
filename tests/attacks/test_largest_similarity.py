"""Re-identification against all training images: brute force, exchangeable images, copies, learned similarities."""

from __future__ import annotations

import pytest
import torch

from fedsynth.attacks import compare_largest_similarity, largest_pair_similarity, largest_similarity
from fedsynth.evaluation import EvaluationError


def _points(n: int, seed: int, d: int = 6) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _cosine(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cosine_similarity(first[:, None], second[None], dim=2)


def test_largest_cosine_similarity_is_that_of_all_pairs():
    query, reference = _points(70, 0), _points(90, 1) * 5
    expected = _cosine(query, reference).max(dim=1)
    found = largest_similarity(query, reference)
    assert found.value.tolist() == pytest.approx(expected.values.tolist(), abs=1e-12)
    assert torch.equal(found.index, expected.indices)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_a_learned_similarity_gives_the_same_in_blocks_of_any_size(block):
    query, reference = _points(30, 2), _points(50, 3)
    found = largest_pair_similarity(query, reference, _cosine, block=block)
    expected = largest_similarity(query, reference)
    assert found.value.tolist() == pytest.approx(expected.value.tolist(), abs=1e-12)
    assert torch.equal(found.index, expected.index)


def test_of_equal_similarities_the_first_record_is_named():
    reference = torch.ones(10, 2)
    for block in (3, 10):
        found = largest_pair_similarity(torch.ones(4, 2), reference, _cosine, block=block)
        assert found.index.tolist() == [0] * 4


def test_a_similarity_need_be_neither_bounded_nor_positive():
    def negative_distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return -torch.cdist(first, second) - 1e6

    query, reference = _points(20, 4), _points(40, 5)
    expected = torch.cdist(query, reference).argmin(dim=1)
    assert torch.equal(largest_pair_similarity(query, reference, negative_distance, block=9).index, expected)


def test_exchangeable_images_exceed_the_threshold_as_often_as_expected():
    # Exact law: of n + 1 exchangeable values the last is among the k largest with probability k / (n + 1).
    generator = torch.Generator().manual_seed(6)
    shares = []
    for _ in range(400):
        values = torch.rand(40 + 19, generator=generator)
        result = compare_largest_similarity(values[:40], values[40:], level=0.1)
        assert result.expected_share == 2 / 20
        shares.append(result.exceeding.share)
    # One share varies with standard deviation sqrt(Var beta(2, 18)) ~ .065, or .08 with the 40 draws: .004 for the mean.
    assert sum(shares) / len(shares) == pytest.approx(0.1, abs=0.016)


def test_threshold_and_shares_by_hand():
    held_out = torch.arange(1, 20).double()
    result = compare_largest_similarity(torch.tensor([0.5, 18.0, 18.5, 30.0]), held_out, level=0.1)
    assert (result.threshold, result.exceeding.successes, result.exceeding.trials) == (18.0, 2, 4)
    assert (result.median_released, result.median_held_out) == (18.25, 10.0)
    # 0.5 beats none of 19; 18 beats 17 and ties with one; 18.5 beats 18; 30 beats all.
    assert result.auroc == pytest.approx((0 + 17.5 + 18 + 19) / 76)


def test_copies_are_found_and_fresh_images_are_not():
    train, held_out = _points(400, 7), _points(199, 8)
    control = largest_similarity(held_out, train).value
    copies = compare_largest_similarity(
        largest_similarity(train[:50] + 0.02 * _points(50, 9), train).value, control
    )
    assert (copies.exceeding.share, copies.auroc) == (1.0, 1.0)
    fresh = compare_largest_similarity(largest_similarity(_points(300, 10), train).value, control)
    assert fresh.exceeding.low <= fresh.expected_share == 0.05
    # Standard error of an AUROC of 300 and 199 values: .026.
    assert fresh.auroc == pytest.approx(0.5, abs=0.08)


def test_a_pair_threshold_would_flag_other_peoples_images_too():
    # Why no threshold for pairs is used: the largest of 2,000 similarities exceeds one that 1 % of pairs exceed.
    train, held_out = _points(2_000, 11), _points(100, 12)
    pair_threshold = _cosine(held_out[:50], train[:200]).quantile(0.99)
    assert float((largest_similarity(held_out, train).value > pair_threshold).double().mean()) == 1.0


@pytest.mark.parametrize(
    ("query", "reference", "message"),
    [
        (torch.zeros(3, 2), torch.ones(3, 2), "query holds 3 embeddings of length 0"),
        (torch.ones(3, 2), torch.ones(3, 4), "query and reference must have the same"),
        (torch.ones(0, 2), torch.ones(3, 2), "query must hold at least 1"),
    ],
)
def test_bad_embeddings_are_refused(query, reference, message):
    with pytest.raises(EvaluationError, match=message):
        largest_similarity(query, reference)


def test_similarities_that_are_none_are_refused():
    points = _points(4, 13)
    for similarity, message in (
        (lambda a, b: a @ a.T[:, :2], r"shape \(4, 4\), one value per pair, got \(4, 2\)"),
        (lambda a, b: None, "got NoneType"),
        (lambda a, b: torch.full((4, 4), torch.nan), "similarity holds 16 NaN"),
    ):
        with pytest.raises(EvaluationError, match=message):
            largest_pair_similarity(points, points, similarity)
    with pytest.raises(EvaluationError, match="block must be an integer >= 1"):
        largest_pair_similarity(points, points, _cosine, block=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": torch.rand(18)}, "level 0.05 needs at least 19 held-out images, got 18"),
        ({"level": 0.0}, "level must be a number"),
        ({"released": torch.rand(3, 2)}, "released must hold one largest similarity per image"),
        ({"released": torch.tensor([torch.nan])}, "released holds 1 NaN"),
        ({"confidence": 95}, "confidence"),
    ],
)
def test_bad_comparisons_are_refused(changes, message):
    arguments = {"released": torch.rand(5), "held_out": torch.rand(40)} | changes
    with pytest.raises(EvaluationError, match=message):
        compare_largest_similarity(**arguments)


def test_nineteen_held_out_images_suffice_for_five_percent():
    assert compare_largest_similarity(torch.rand(5), torch.rand(19)).expected_share == 0.05
