"""Membership scores of shard means, by hand and against torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from fedsynth.attacks import Candidates, PublicReference, ReleasedMeans, membership_scores, public_reference
from fedsynth.attacks.summary_scores import clip_latents, filter_scale
from fedsynth.evaluation import EvaluationError

DIM = 3


def _reference() -> PublicReference:
    root = torch.tensor([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.1, 0.3, 0.7]], dtype=torch.float64)
    means = torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, 0.5]], dtype=torch.float64)
    return PublicReference(means=means, covariances=torch.stack([root @ root.T, 2 * root @ root.T]))


def _released(means, noise_std, counts, labels, clients) -> ReleasedMeans:
    return ReleasedMeans(
        torch.tensor(means, dtype=torch.float64),
        torch.tensor(noise_std, dtype=torch.float64),
        torch.tensor(counts),
        torch.tensor(labels),
        torch.tensor(clients),
    )


def _candidate(latent, label: int, client: int) -> Candidates:
    return Candidates(
        torch.tensor([latent], dtype=torch.float64), torch.tensor([label]), torch.tensor([client])
    )


TWO_SHARDS = (
    [[1.0, 2.0, 3.0], [0.5, 0.0, -1.0], [9.0, 9.0, 9.0]],
    [0.5, 2.0, 1.0],
    [10, 4, 7],
    [1, 1, 0],
    [2, 2, 2],
)


def test_matched_filter_sums_or_maximizes_over_own_shards():
    candidate, reference = _candidate([2.0, 0.0, 1.0], 1, 2), _reference()
    centered = candidate.latents[0] - reference.means[1]
    parts = [
        float(centered @ (torch.tensor(mean, dtype=torch.float64) - reference.means[1])) * n / std
        for mean, std, n in zip(TWO_SHARDS[0][:2], TWO_SHARDS[1], TWO_SHARDS[2], strict=False)
    ]
    for combine, expected in (("sum", sum(parts)), ("max", max(parts))):
        scores = membership_scores(candidate, _released(*TWO_SHARDS), reference, combine=combine)
        assert float(scores["matched_filter"]) == pytest.approx(expected, rel=1e-12)


def test_nearest_prototype_is_the_distance_to_the_nearest_own_mean():
    scores = membership_scores(_candidate([0.5, 0.0, -2.0], 1, 2), _released(*TWO_SHARDS), _reference())
    assert float(scores["nearest_prototype"]) == pytest.approx(-1.0)


def test_likelihood_ratio_equals_torch_distributions():
    latent, reference = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64), _reference()
    mean, covariance = reference.means[1], reference.covariances[1]
    ratios = []
    for released, std, n in zip(TWO_SHARDS[0][:2], TWO_SHARDS[1], TWO_SHARDS[2], strict=False):
        noise = std**2 * torch.eye(DIM, dtype=torch.float64)
        outside = MultivariateNormal(mean, covariance / n + noise)
        inside = MultivariateNormal(mean + (latent - mean) / n, covariance * (n - 1) / n**2 + noise)
        point = torch.tensor(released, dtype=torch.float64)
        ratios.append(inside.log_prob(point) - outside.log_prob(point))
    expected = float(torch.stack(ratios).logsumexp(0)) - math.log(2)
    scores = membership_scores(_candidate(latent.tolist(), 1, 2), _released(*TWO_SHARDS), reference)
    assert float(scores["likelihood_ratio"]) == pytest.approx(expected, rel=1e-10)


def test_other_clients_other_classes_and_empty_shards_are_ignored():
    candidate, reference = _candidate([2.0, 0.0, 1.0], 1, 2), _reference()
    expected = membership_scores(candidate, _released(*TWO_SHARDS), reference)
    more = _released(
        TWO_SHARDS[0] + [[5.0, 5.0, 5.0], [7.0, 0.0, 0.0], [4.0, 4.0, 4.0]],
        TWO_SHARDS[1] + [1.0, 1.0, 0.0],
        TWO_SHARDS[2] + [50, 60, 0],
        TWO_SHARDS[3] + [1, 0, 1],
        TWO_SHARDS[4] + [0, 2, 2],
    )
    for name, value in membership_scores(candidate, more, reference).items():
        assert float(value) == pytest.approx(float(expected[name]), rel=1e-12)


@pytest.mark.parametrize("combine", ["sum", "max"])
def test_a_candidate_without_any_release_gets_no_evidence(combine):
    scores = membership_scores(
        _candidate([2.0, 0.0, 1.0], 1, 4), _released(*TWO_SHARDS), _reference(), combine=combine
    )
    assert (float(scores["matched_filter"]), float(scores["likelihood_ratio"])) == (0.0, 0.0)
    assert math.isfinite(float(scores["nearest_prototype"]))


def test_a_shard_of_one_record_without_noise_reveals_it_with_finite_score():
    released = _released([[1.0, 2.0, 3.0]], [0.0], [1], [0], [0])
    own = membership_scores(_candidate([1.0, 2.0, 3.0], 0, 0), released, _reference())["likelihood_ratio"]
    other = membership_scores(_candidate([1.0, 2.0, 3.1], 0, 0), released, _reference())["likelihood_ratio"]
    assert math.isfinite(float(own))
    assert float(own) > 10 > float(other)


def test_filter_scale_is_the_noise_or_the_spread_between_shards():
    released = _released(
        [[0.0, 0.0], [2.0, 0.0], [4.0, 4.0], [1.0, 1.0]],
        [0.0, 0.0, 0.7, 0.0],
        [3, 3, 3, 3],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
    )
    # Cell (0, 0): variances 2 and 0 over its two shards; the class-1 shard is alone.
    assert filter_scale(released).tolist() == pytest.approx([1.0, 1.0, 0.7, 1.0])


def test_filter_scale_of_a_single_shard_is_that_of_its_class():
    released = _released([[0.0], [2.0], [4.0]], [0.0, 0.0, 0.0], [3, 3, 3], [0, 0, 0], [0, 1, 2])
    assert filter_scale(released).tolist() == pytest.approx([2.0, 2.0, 2.0])


def test_clipping_bounds_the_norm_and_keeps_the_inside():
    latents = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    clipped = clip_latents(latents, 1.0)
    assert clipped.norm(dim=1).tolist() == pytest.approx([1.0, 0.5, 0.0])
    assert torch.equal(clipped[1:], latents[1:])


def test_public_reference_holds_class_moments():
    latents = torch.tensor([[0.0, 0.0], [2.0, 4.0], [5.0, 5.0], [5.0, 7.0]])
    reference = public_reference(latents, torch.tensor([0, 0, 1, 1]), num_classes=2)
    assert reference.means.tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert reference.covariances.tolist() == [[[2.0, 4.0], [4.0, 8.0]], [[0.0, 0.0], [0.0, 2.0]]]


def test_public_reference_needs_two_records_of_each_class():
    with pytest.raises(EvaluationError, match="1 records of class 1"):
        public_reference(torch.zeros(3, 2), torch.tensor([0, 0, 1]), num_classes=2)
    with pytest.raises(EvaluationError, match="one class index per record"):
        public_reference(torch.zeros(3, 2), torch.tensor([0, 0]), num_classes=2)
    with pytest.raises(EvaluationError, match=r"lie in \[0, 0\]"):
        public_reference(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]), num_classes=1)


def test_unknown_combination_is_refused():
    with pytest.raises(EvaluationError, match="combine"):
        membership_scores(
            _candidate([0.0, 0.0, 0.0], 0, 2), _released(*TWO_SHARDS), _reference(), combine="mean"
        )


@pytest.mark.parametrize("num_classes", [0, -1, 1.5, True])
def test_a_reference_without_classes_is_refused(num_classes):
    with pytest.raises(EvaluationError, match="num_classes must be an integer >= 1, got"):
        public_reference(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), num_classes=num_classes)
