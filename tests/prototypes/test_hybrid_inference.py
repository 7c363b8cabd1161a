from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prototype_cases import DIMS, NUM_CLASSES, one_modality, prototypes_of, random_batch
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestCentroid

from fedsynth.errors import ConfigError, DataError
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.prototypes.hybrid_inference import hybrid_prediction, prototype_distances
from fedsynth.records import InvalidTensorError

seeds = st.integers(0, 2**31)


def random_outputs(seed, n=30, num_classes=3):
    generator = torch.Generator().manual_seed(seed)
    probability = torch.softmax(torch.randn(n, num_classes, generator=generator), dim=1)
    return probability, torch.rand(n, num_classes, generator=generator)


# --- distances ---


@pytest.mark.parametrize("weights", [None, {"audio": 0.3, "text": 2.0}, {"text": 1.0}])
def test_distances_equal_weighted_scipy_distances(weights):
    embeddings, label, _ = random_batch(0)
    bank = prototypes_of(embeddings, label)
    expected = sum(
        (weights or dict.fromkeys(DIMS, 1.0)).get(m, 0.0)
        * cdist(z.double(), bank.mean[m].double(), "sqeuclidean")
        for m, z in embeddings.items()
    )
    distance = prototype_distances(embeddings, bank, weights)
    assert distance.dtype == torch.float64
    np.testing.assert_allclose(distance.numpy(), expected, rtol=1e-12)


def test_nearest_prototype_equals_scikit_learn():
    embeddings, label, _ = random_batch(1)
    unseen, _, _ = random_batch(2)
    distance = prototype_distances(unseen, prototypes_of(embeddings, label), {"audio": 1.0})
    reference = NearestCentroid().fit(embeddings["audio"].numpy(), label.numpy())
    assert distance.argmin(dim=1).tolist() == reference.predict(unseen["audio"].numpy()).tolist()


@settings(max_examples=20)
@given(seeds, st.floats(-100, 100))
def test_moving_embeddings_and_prototypes_together_changes_nothing(seed, shift):
    embeddings, label, _ = random_batch(seed)
    bank = prototypes_of(embeddings, label)
    moved = ClassPrototypes(mean={m: p + shift for m, p in bank.mean.items()}, count=bank.count)
    distance = prototype_distances({m: z + shift for m, z in embeddings.items()}, moved)
    # Values up to about 100 are rounded to 4e-6, differences reach about 20: 2 · 20 · 2 · 4e-6, times 6 dimensions.
    torch.testing.assert_close(distance, prototype_distances(embeddings, bank), rtol=1e-4, atol=2e-3)


def test_modality_of_weight_zero_is_not_read():
    embeddings, label, _ = random_batch(3)
    bank = prototypes_of(embeddings, label)
    expected = prototype_distances(embeddings, bank, {"text": 1.0})
    embeddings["audio"] = torch.full_like(embeddings["audio"], torch.nan)
    assert torch.equal(prototype_distances(embeddings, bank, {"text": 1.0, "audio": 0.0}), expected)
    del embeddings["audio"]
    assert torch.equal(prototype_distances(embeddings, bank, {"text": 1.0}), expected)


def test_class_unknown_in_any_modality_that_counts_is_infinitely_far():
    embeddings = {m: torch.zeros(1, 2) for m in ("audio", "text")}
    bank = ClassPrototypes(
        mean={"audio": torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "text": torch.ones(2, 2)},
        count={"audio": torch.tensor([1, 0]), "text": torch.tensor([1, 1])},
    )
    assert prototype_distances(embeddings, bank).tolist() == [[3.0, math.inf]]
    assert prototype_distances(embeddings, bank, {"text": 0.5}).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"image": 1.0}, "image"),
        ({"audio": -1.0}, ">= 0"),
        ({"audio": math.nan}, "finite"),
        ({"audio": 0.0}, "all of them 0"),
        ({}, "all of them 0"),
    ],
)
def test_distances_refuse_impossible_weights(weights, message):
    embeddings, label, _ = random_batch(0)
    with pytest.raises(ConfigError, match=message):
        prototype_distances(embeddings, prototypes_of(embeddings, label), weights)


def test_distances_refuse_embeddings_that_do_not_fit():
    embeddings, label, _ = random_batch(0)
    bank = prototypes_of(embeddings, label)
    with pytest.raises(DataError, match="weight 0"):
        prototype_distances({"audio": embeddings["audio"]}, bank)
    with pytest.raises(InvalidTensorError, match="text"):
        prototype_distances(embeddings | {"text": embeddings["text"][:-1]}, bank)
    with pytest.raises(InvalidTensorError, match="audio"):
        prototype_distances(embeddings | {"audio": embeddings["text"]}, bank)
    with pytest.raises(InvalidTensorError, match="NaN"):
        prototype_distances(embeddings | {"text": torch.full((40, 2), torch.nan)}, bank)


# --- prediction ---


@settings(max_examples=30)
@given(seeds, st.floats(0, 1.2))
def test_each_record_follows_the_rule_by_itself(seed, threshold):
    probability, distance = random_outputs(seed)
    prediction = hybrid_prediction(probability, distance, threshold)
    for p, d, label, rerouted in zip(
        probability.numpy(), distance.numpy(), prediction.label, prediction.rerouted, strict=True
    ):
        confident = p.max() >= np.float32(threshold)
        assert bool(rerouted) is not bool(confident)
        assert int(label) == (p.argmax() if confident else d.argmin())


@settings(max_examples=20)
@given(seeds)
def test_threshold_zero_is_the_softmax_and_above_one_the_prototypes(seed):
    probability, distance = random_outputs(seed)
    softmax_only = hybrid_prediction(probability, distance, 0.0)
    assert torch.equal(softmax_only.label, probability.argmax(dim=1))
    assert not bool(softmax_only.rerouted.any())
    prototypes_only = hybrid_prediction(probability, distance, 1.01)
    assert torch.equal(prototypes_only.label, distance.argmin(dim=1))
    assert bool(prototypes_only.rerouted.all())


@settings(max_examples=20)
@given(seeds, st.floats(0, 1), st.floats(0, 1))
def test_higher_thresholds_reroute_more(seed, first, second):
    probability, distance = random_outputs(seed)
    low, high = (hybrid_prediction(probability, distance, t).rerouted for t in sorted((first, second)))
    assert bool((low <= high).all())


def test_of_two_classes_a_threshold_of_six_tenths_reroutes_between_four_and_six_tenths():
    positive = torch.arange(0, 1001) / 1000
    probability = torch.stack([1 - positive, positive], dim=1)
    rerouted = hybrid_prediction(probability, torch.ones(1001, 2), 0.6).rerouted
    assert positive[rerouted].min().item() == pytest.approx(0.401)
    assert positive[rerouted].max().item() == pytest.approx(0.599)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probability_at_the_threshold_counts_as_confident(dtype):
    probability = torch.tensor([[0.3, 0.7]], dtype=dtype)  # float32(0.7) < 0.7
    assert not bool(hybrid_prediction(probability, torch.tensor([[0.0, 1.0]]), 0.7).rerouted)


def test_ties_go_to_the_lowest_class():
    probability = torch.tensor([[0.2, 0.4, 0.4]])
    distance = torch.tensor([[2.0, 1.0, 1.0]])
    assert hybrid_prediction(probability, distance, 0.0).label.tolist() == [1]
    assert hybrid_prediction(probability, distance, 2.0).label.tolist() == [1]


def test_unknown_class_is_never_chosen_by_prototypes_and_without_any_the_softmax_decides():
    probability = torch.tensor([[0.45, 0.55]])
    one = hybrid_prediction(probability, torch.tensor([[9.0, math.inf]]), 0.6)
    assert (one.label.tolist(), one.rerouted.tolist()) == ([0], [True])
    none = hybrid_prediction(probability, torch.full((1, 2), math.inf), 0.6)
    assert (none.label.tolist(), none.rerouted.tolist()) == ([1], [False])


def test_no_records_give_no_predictions():
    prediction = hybrid_prediction(torch.zeros(0, 2), torch.zeros(0, 2), 0.6)
    assert prediction.label.shape == prediction.rerouted.shape == (0,)


def test_separated_classes_are_found_although_the_softmax_is_at_chance():
    # The case the rule is for: geometry knows the class, the head does not.
    label = torch.tensor([0, 1] * 10)
    z = torch.where(label == 1, 1.0, -1.0).unsqueeze(1)
    bank = one_modality([[-1.0], [1.0]], [10, 10])
    probability = torch.tensor([[0.52, 0.48]]).repeat(20, 1)
    distance = prototype_distances({"fused": z}, bank)
    assert torch.equal(hybrid_prediction(probability, distance, 0.6).label, label)


@pytest.mark.parametrize("threshold", [-0.1, math.inf, math.nan, "0.6", True])
def test_threshold_must_be_a_finite_number_from_zero(threshold):
    with pytest.raises(ConfigError, match="threshold"):
        hybrid_prediction(*random_outputs(0), threshold)


@pytest.mark.parametrize(
    ("probability", "distance", "message"),
    [
        (torch.tensor([[2.0, -1.0]]), torch.ones(1, 2), "softmax, not the logits"),
        (torch.tensor([[0.5, 0.6]]), torch.ones(1, 2), "sum to 1"),
        (torch.tensor([0.5, 0.5]), torch.ones(1, 2), "axes"),
        (torch.tensor([[0.5, 0.5]]), torch.ones(2, 2), "shape"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, -1.0]]), "smallest -1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, math.nan]]), "NaN"),
        (torch.tensor([[0.5, 0.5]]), None, "no tensor"),
    ],
)
def test_prediction_refuses_what_are_no_probabilities_or_distances(probability, distance, message):
    with pytest.raises(InvalidTensorError, match=message):
        hybrid_prediction(probability, distance, 0.6)


def test_classes_are_those_of_the_bank():
    embeddings, label, _ = random_batch(5)
    distance = prototype_distances(embeddings, prototypes_of(embeddings, label))
    assert distance.shape == (len(label), NUM_CLASSES)
