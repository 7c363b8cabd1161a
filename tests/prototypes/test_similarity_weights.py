from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prototype_cases import DIMS, NUM_CLASSES, one_modality, prototypes_of, random_batch
from scipy.special import softmax
from sklearn.metrics.pairwise import cosine_similarity

from fedsynth.errors import ConfigError, DataError
from fedsynth.prototypes.class_prototypes import ClassPrototypes, update_bank
from fedsynth.prototypes.similarity_weights import mean_similarity, similarity_weights
from fedsynth.records import InvalidTensorError

seeds = st.integers(0, 2**31)
cosines = st.lists(st.floats(-1, 1), min_size=1, max_size=8)
placements = pytest.mark.parametrize("placement", ["outside", "inside"])


def test_similarity_equals_the_mean_of_scikit_learn_cosines():
    client, bank = prototypes_of(*random_batch(0)), prototypes_of(*random_batch(1))
    expected = [
        cosine_similarity(client.mean[m][c : c + 1].double(), bank.mean[m][c : c + 1].double()).item()
        for m in DIMS
        for c in range(NUM_CLASSES)
    ]
    assert mean_similarity(client, bank) == pytest.approx(np.mean(expected), rel=1e-12)


def test_only_pairs_known_to_both_enter():
    client = one_modality([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [1, 1, 0])
    bank = one_modality([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]], [3, 0, 2])
    assert mean_similarity(client, bank) == pytest.approx(1 / math.sqrt(2))


def test_pairs_weigh_the_same_whatever_their_modality_and_count():
    client = ClassPrototypes(
        mean={"audio": torch.ones(2, 3), "text": torch.tensor([[1.0], [0.0]])},
        count={"audio": torch.tensor([1, 100]), "text": torch.tensor([5, 0])},
    )
    bank = ClassPrototypes(
        mean={"audio": torch.ones(2, 3), "text": torch.tensor([[-2.0], [1.0]])},
        count={m: torch.tensor([9, 9]) for m in ("audio", "text")},
    )
    assert mean_similarity(client, bank) == pytest.approx((1 + 1 - 1) / 3)


@settings(max_examples=20)
@given(seeds, st.sampled_from([1e-6, 0.5, 1e4]))
def test_similarity_is_symmetric_bounded_one_with_itself_and_blind_to_scale(seed, scale):
    client, bank = prototypes_of(*random_batch(seed)), prototypes_of(*random_batch(seed + 1))
    scaled = ClassPrototypes(mean={m: scale * p for m, p in client.mean.items()}, count=client.count)
    similarity = mean_similarity(client, bank)
    assert -1 <= similarity <= 1
    assert mean_similarity(bank, client) == pytest.approx(similarity, rel=1e-12)
    assert 1 - 1e-12 <= mean_similarity(client, client) <= 1
    assert mean_similarity(scaled, bank) == pytest.approx(similarity, abs=1e-6)  # scaling rounds to float32


def test_cosine_with_a_zero_prototype_and_similarity_without_pairs_are_zero():
    bank = one_modality([[1.0, 0.0], [0.0, 1.0]], [1, 1])
    assert mean_similarity(one_modality([[0.0, 0.0], [0.0, 2.0]], [4, 4]), bank) == 0.5
    assert mean_similarity(one_modality([[0.0, 0.0], [0.0, 0.0]], [0, 0]), bank) == 0.0


def test_rounding_does_not_lead_above_one():
    ones = one_modality([[1.0, 1.0, 1.0]], [1])  # 3 / (√3 √3) is 1 + 2e-16 in float64
    assert mean_similarity(ones, ones) == 1.0


def test_bank_after_the_round_flatters_its_own_client():
    # Why the bank before the round is asked for: alone in a round, a client moves the bank towards itself.
    client, bank = one_modality([[1.0, 0.0]], [1]), one_modality([[0.0, 1.0]], [1])
    assert mean_similarity(client, bank) == 0
    assert mean_similarity(client, update_bank(bank, client, 0.9)) > 0.1


def test_similarity_refuses_prototypes_of_another_model():
    with pytest.raises(DataError, match="one model"):
        mean_similarity(one_modality([[1.0]], [1]), one_modality([[1.0, 2.0]], [1]))


@placements
@settings(max_examples=30)
@given(similarity=cosines, sensitivity=st.floats(0, 10))
def test_weights_equal_the_formula_in_numpy(placement, similarity, sensitivity):
    s = np.array(similarity)
    outside = sensitivity * np.log1p(np.exp(s))
    expected = softmax(outside if placement == "outside" else np.log1p(np.exp(sensitivity * s)))
    weights = similarity_weights(torch.tensor(similarity), sensitivity, placement=placement)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-5)  # s rounded to float32, times δ
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


@placements
@pytest.mark.parametrize("sensitivity", [0.5, 2.0, 21.0])  # torch softplus is 1e-9 off at 21
def test_extreme_ratio_is_the_exponential_of_the_sensitivity_for_both_placements(placement, sensitivity):
    weights = similarity_weights(
        torch.tensor([1.0, -1.0], dtype=torch.float64), sensitivity, placement=placement
    )
    assert float(weights[0] / weights[1]) == pytest.approx(math.exp(sensitivity), rel=1e-12)


@placements
@settings(max_examples=20)
@given(value=st.floats(-1, 1), num_clients=st.integers(1, 9))
def test_equal_similarities_weigh_alike(placement, value, num_clients):
    weights = similarity_weights(torch.full((num_clients,), value), 2.0, placement=placement)
    assert weights.tolist() == pytest.approx([1 / num_clients] * num_clients, rel=1e-12)


@placements
@settings(max_examples=20)
@given(similarity=cosines)
def test_sensitivity_zero_weighs_alike(placement, similarity):
    weights = similarity_weights(torch.tensor(similarity), 0.0, placement=placement)
    assert weights.tolist() == pytest.approx([1 / len(similarity)] * len(similarity), rel=1e-12)


@placements
@settings(max_examples=30)
@given(similarity=cosines, seed=seeds)
def test_weights_follow_their_clients_and_rise_with_similarity(placement, similarity, seed):
    s = torch.tensor(similarity, dtype=torch.float64)
    weights = similarity_weights(s, 2.0, placement=placement)
    order = torch.randperm(len(s), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(similarity_weights(s[order], 2.0, placement=placement), weights[order])
    ascending = weights[torch.argsort(s)]
    assert bool((ascending.diff() >= -1e-15).all())


@pytest.mark.parametrize("sensitivity", [-1.0, math.inf, math.nan, "2.0", True])
def test_sensitivity_must_be_a_finite_number_from_zero(sensitivity):
    with pytest.raises(ConfigError, match="sensitivity"):
        similarity_weights(torch.zeros(2), sensitivity)


def test_weights_refuse_what_are_no_similarities():
    with pytest.raises(InvalidTensorError, match="NaN"):
        similarity_weights(torch.tensor([0.5, math.nan]), 2.0)
    with pytest.raises(InvalidTensorError, match="axes"):
        similarity_weights(torch.zeros(2, 2), 2.0)
    with pytest.raises(DataError, match="no clients"):
        similarity_weights(torch.zeros(0), 2.0)
    with pytest.raises(ConfigError, match="'between'"):
        similarity_weights(torch.zeros(2), 2.0, placement="between")
