from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.prototypes import align, align_release
from fedsynth.records import InvalidTensorError, ShardRelease


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_release(means, counts):
    counts = torch.as_tensor(counts)
    # Every quantity of a shard carries the shard's own mark, so that a permutation of one alone is seen.
    mark = torch.arange(1, counts.numel() + 1, dtype=torch.float64).reshape(counts.shape)
    variances = mark.unsqueeze(-1).expand(means.shape).clone()
    return ShardRelease(means, variances, counts, mark, clip_radius=1.0, epsilon=math.inf, delta=1e-5)


@pytest.mark.parametrize("planted", list(itertools.permutations(range(4))))
def test_planted_permutation_is_recovered(planted):
    reference = 10 * normal(4, 64)
    prototypes = torch.empty_like(reference)
    prototypes[list(planted)] = reference + 0.1 * normal(4, 64, seed=1)
    assert align(reference, prototypes).tolist() == list(planted)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 8))
def test_cost_equals_brute_force_over_all_permutations(seed, dim):
    reference, prototypes = normal(4, dim, seed=seed), normal(4, dim, seed=seed + 1)

    def cost(permutation):
        return float((reference - prototypes[list(permutation)]).square().sum())

    best = min(cost(permutation) for permutation in itertools.permutations(range(4)))
    found = align(reference, prototypes).tolist()
    assert sorted(found) == [0, 1, 2, 3]
    assert cost(found) == pytest.approx(best, rel=1e-12)


def test_matching_survives_a_large_common_offset():
    reference = normal(4, 8) + 1e8
    assert align(reference, reference[[2, 0, 3, 1]]).tolist() == [1, 3, 0, 2]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**31),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_empty_components_take_no_part_in_the_matching(seed, rows, columns):
    reference, prototypes = normal(4, 3, seed=seed), normal(4, 3, seed=seed + 1)
    rows, columns = torch.tensor(rows), torch.tensor(columns)

    def run(reference, prototypes):
        return align(reference, prototypes, reference_occupied=rows, prototypes_occupied=columns)

    permutation = run(reference, prototypes)
    assert sorted(permutation.tolist()) == [0, 1, 2, 3]
    matched = rows & columns[permutation]
    assert int(matched.sum()) == min(int(rows.sum()), int(columns.sum()))
    # What an empty component holds does not matter.
    reference, prototypes = reference.clone(), prototypes.clone()
    reference[~rows], prototypes[~columns] = 1e6, -1e6
    assert torch.equal(run(reference, prototypes), permutation)


@pytest.mark.parametrize(
    ("reference", "prototypes"),
    [
        (torch.zeros(4, 3), torch.zeros(4, 2)),
        (torch.zeros(4, 3), torch.zeros(3, 3)),
        (torch.zeros(4), torch.zeros(4)),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (torch.zeros(4, 3), torch.full((4, 3), torch.nan)),
        (torch.full((4, 3), torch.inf), torch.zeros(4, 3)),
        (torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 3)),
        ([[0.0]], torch.zeros(1, 1)),
    ],
)
def test_align_refuses_what_it_cannot_match(reference, prototypes):
    with pytest.raises(InvalidTensorError):
        align(reference, prototypes)


def test_align_refuses_a_mask_of_another_length():
    with pytest.raises(InvalidTensorError, match="prototypes_occupied"):
        align(torch.zeros(4, 3), torch.zeros(4, 3), prototypes_occupied=torch.ones(3, dtype=torch.bool))


def test_release_is_aligned_to_the_largest_client_of_each_class():
    base = 10 * normal(4, 5)
    orders = [[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]]
    means = torch.stack([base[order] for order in orders]).unsqueeze(1).repeat(1, 2, 1, 1)
    counts = torch.tensor([[[1] * 4, [9] * 4], [[5] * 4, [2] * 4], [[3] * 4, [2] * 4]])
    release = make_release(means, counts)
    aligned = align_release(release)
    for client in range(3):
        assert torch.equal(aligned.means[client, 0], base[orders[1]])  # client 1 has most of class 0
        assert torch.equal(aligned.means[client, 1], base[orders[0]])  # client 0 has most of class 1


def test_all_quantities_of_a_shard_move_together():
    release = make_release(normal(3, 2, 4, 5), torch.arange(24).reshape(3, 2, 4))
    aligned = align_release(release)
    assert torch.equal(aligned.variances[..., 0], aligned.noise_std)
    shard = (aligned.noise_std - 1).long().flatten()  # where each one came from
    assert torch.equal(aligned.counts.flatten(), release.counts.flatten()[shard])
    assert torch.equal(aligned.means.reshape(24, 5), release.means.reshape(24, 5)[shard])
    assert not torch.equal(aligned.counts, release.counts)


def test_reference_stays_and_a_tie_goes_to_the_first_client():
    release = make_release(normal(2, 1, 4, 5), torch.ones(2, 1, 4, dtype=torch.int64))
    assert torch.equal(align_release(release).means[0], release.means[0])


def test_client_without_the_class_stays_as_it_is():
    counts = torch.tensor([[[4, 4, 4, 4]], [[0, 0, 0, 0]]])
    release = make_release(normal(2, 1, 4, 5), counts)
    assert torch.equal(align_release(release).means, release.means)
