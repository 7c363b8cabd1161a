from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prototype_cases import DIMS, NUM_CLASSES, assert_same, one_modality, prototypes_of, random_batch
from safetensors.torch import load, save
from sklearn.neighbors import NearestCentroid
from torch.utils._python_dispatch import TorchDispatchMode

from fedsynth.errors import ArtifactError, ConfigError, DataError
from fedsynth.prototypes.class_prototypes import (
    ClassPrototypes,
    PrototypeSums,
    pooled_prototypes,
    update_bank,
)
from fedsynth.records import InvalidTensorError

seeds = st.integers(0, 2**31)


def clients_of(seed, num_clients=4):
    """Records of every client; client 0 lacks class 2."""
    batches = [random_batch(seed + k, n=20 + 7 * k) for k in range(num_clients)]
    embeddings, label, present = batches[0]
    batches[0] = (embeddings, label.clamp_max(1), present)
    return batches


# --- local prototypes ---


def test_prototypes_equal_numpy_class_by_class():
    embeddings, label, present = random_batch(0)
    prototypes = prototypes_of(embeddings, label, present)
    for modality, z in embeddings.items():
        for c in range(NUM_CLASSES):
            rows = z.numpy().astype(np.float64)[(label == c).numpy() & present[modality].numpy()]
            assert prototypes.count[modality][c] == len(rows)
            np.testing.assert_allclose(prototypes.mean[modality][c].numpy(), rows.mean(axis=0), rtol=1e-6)


def test_prototypes_equal_the_centroids_of_scikit_learn():
    embeddings, label, _ = random_batch(1)
    prototypes = prototypes_of(embeddings, label)
    for modality, z in embeddings.items():
        reference = NearestCentroid().fit(z.double().numpy(), label.numpy()).centroids_
        np.testing.assert_allclose(prototypes.mean[modality].numpy(), reference, rtol=1e-6)


@settings(max_examples=30)
@given(seeds, st.lists(st.integers(0, 40), max_size=5))
def test_streaming_equals_the_whole_however_it_is_cut(seed, cuts):
    embeddings, label, present = random_batch(seed)
    sums = PrototypeSums(NUM_CLASSES)
    edges = [0, *sorted(cuts), 40]
    for start, stop in pairwise(edges):  # some of the batches are empty
        part = slice(start, stop)
        sums.add(
            {m: z[part] for m, z in embeddings.items()},
            label[part],
            {m: mask[part] for m, mask in present.items()},
        )
    assert_same(sums.prototypes(), prototypes_of(embeddings, label, present))


@settings(max_examples=30)
@given(seeds)
def test_order_of_records_does_not_matter(seed):
    embeddings, label, present = random_batch(seed)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    shuffled = prototypes_of(
        {m: z[order] for m, z in embeddings.items()}, label[order], {m: p[order] for m, p in present.items()}
    )
    assert_same(shuffled, prototypes_of(embeddings, label, present))


def test_small_differences_survive_a_large_common_value():
    # In float32 a running sum of 4096 values near 1000 is a multiple of 0.25 at the end.
    z = 1000 + torch.arange(4096).unsqueeze(1) % 2 / 1024
    sums = PrototypeSums(1)
    for row in z.split(8):
        sums.add({"fused": row}, torch.zeros(8, dtype=torch.int64))
    assert sums.prototypes().mean["fused"].item() == pytest.approx(
        1000 + 0.5 / 1024, abs=3.1e-5
    )  # half an ulp


def test_embedding_of_an_absent_modality_is_not_read():
    embeddings, label, present = random_batch(2)
    expected = prototypes_of(embeddings, label, present)
    embeddings["audio"][~present["audio"]] = torch.nan
    assert_same(prototypes_of(embeddings, label, present), expected, rtol=0, atol=0)


def test_modality_without_a_mask_is_present_everywhere():
    embeddings, label, present = random_batch(3)
    prototypes = prototypes_of(embeddings, label, {"audio": present["audio"]})
    assert torch.equal(prototypes.count["text"], torch.bincount(label, minlength=NUM_CLASSES))
    assert int(prototypes.count["audio"].sum()) == int(present["audio"].sum())


def test_absent_class_is_unknown_and_zero():
    prototypes = prototypes_of({"fused": torch.ones(3, 2)}, torch.tensor([2, 2, 0]))
    assert prototypes.known("fused").tolist() == [True, False, True]
    assert prototypes.mean["fused"].tolist() == [[1, 1], [0, 0], [1, 1]]


def test_prototypes_carry_no_gradient():
    z = torch.ones(2, 2, requires_grad=True)
    assert not prototypes_of({"fused": z}, torch.tensor([0, 1])).mean["fused"].requires_grad


def test_adding_takes_the_same_number_of_operations_for_any_number_of_records():
    def operations(n):
        class Counter(TorchDispatchMode):
            calls = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.calls += 1
                return func(*args, **(kwargs or {}))

        embeddings, label, present = random_batch(0, n=n)
        sums = PrototypeSums(NUM_CLASSES)
        with Counter() as counter:
            sums.add(embeddings, label, present)
        return counter.calls

    assert 0 < operations(10) == operations(1000)


@pytest.mark.parametrize(
    ("embeddings", "label", "present", "message"),
    [
        ({"audio": torch.ones(2, 4)}, [0, 1], None, "audio', 'text"),
        ({m: torch.ones(2, d) for m, d in DIMS.items()}, [0, 3], None, r"\[0, 3\)"),
        ({m: torch.ones(2, d) for m, d in DIMS.items()}, [0, -1], None, "from -1"),
        ({m: torch.ones(3, d) for m, d in DIMS.items()}, [0, 1], None, r"\[2, dim\]"),
        ({m: torch.ones(2, 5) for m in DIMS}, [0, 1], None, "5 dimensions"),
        ({m: torch.full((2, d), torch.nan) for m, d in DIMS.items()}, [0, 1], None, "NaN"),
        ({m: torch.ones(2, d) for m, d in DIMS.items()}, [0, 1], {"image": torch.ones(2)}, "image"),
        ({m: torch.ones(2, d) for m, d in DIMS.items()}, [0, 1], {"text": torch.ones(2)}, "boolean"),
    ],
)
def test_refused_batch_leaves_the_sums_as_they_were(embeddings, label, present, message):
    sums = PrototypeSums(NUM_CLASSES)
    sums.add(*random_batch(0))
    before = sums.prototypes()
    with pytest.raises(DataError, match=message):
        sums.add(embeddings, torch.tensor(label), present)
    assert_same(sums.prototypes(), before, rtol=0, atol=0)


def test_prototypes_before_the_first_batch_are_refused():
    with pytest.raises(DataError, match="before the first batch"):
        PrototypeSums(2).prototypes()
    with pytest.raises(ConfigError, match="num_classes"):
        PrototypeSums(0)


# --- the record ---


def test_record_survives_safetensors():
    prototypes = prototypes_of(*random_batch(4))
    restored = ClassPrototypes.from_tensors(load(save(prototypes.to_tensors())))
    assert set(restored.modalities) == set(DIMS)
    for modality in DIMS:
        assert torch.equal(restored.mean[modality], prototypes.mean[modality])
        assert torch.equal(restored.count[modality], prototypes.count[modality])
        assert restored.mean[modality].dtype == torch.float32
        assert restored.count[modality].dtype == torch.int64


@pytest.mark.gpu
def test_record_moves_to_another_device():
    moved = prototypes_of(*random_batch(4)).to("cuda")
    assert {tensor.device.type for tensor in moved.to_tensors().values()} == {"cuda"}


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"mean/audio": torch.ones(2, 3)},
        {"mean/audio": torch.ones(2, 3), "count/text": torch.ones(2, dtype=torch.int64)},
        {"mean": torch.ones(2, 3), "count": torch.ones(2, dtype=torch.int64)},
        {"means/audio": torch.ones(2, 3), "count/audio": torch.ones(2, dtype=torch.int64)},
    ],
)
def test_foreign_tensors_are_no_stored_prototypes(tensors):
    with pytest.raises(ArtifactError):
        ClassPrototypes.from_tensors(tensors)


@pytest.mark.parametrize(
    ("mean", "count", "message"),
    [
        (torch.ones(2, 3).double(), torch.ones(2, dtype=torch.int64), "float32"),
        (torch.ones(2, 3), torch.ones(3, dtype=torch.int64), "one row per count"),
        (torch.ones(2, 0), torch.ones(2, dtype=torch.int64), "empty"),
        (torch.ones(2, 3), torch.ones(2), "int64"),
        (torch.ones(2, 3), torch.tensor([1, 0]), "must be zeros"),
        (torch.zeros(2, 3), torch.tensor([1, -1]), ">= 0"),
        (torch.full((2, 3), torch.inf), torch.ones(2, dtype=torch.int64), "infinite"),
    ],
)
def test_record_refuses_what_are_no_prototypes(mean, count, message):
    with pytest.raises(InvalidTensorError, match=message):
        ClassPrototypes(mean={"fused": mean}, count={"fused": count})


def test_record_needs_the_same_modalities_and_classes_everywhere():
    mean, count = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    with pytest.raises(InvalidTensorError, match="same modalities"):
        ClassPrototypes(mean={"fused": mean}, count={"audio": count})
    with pytest.raises(InvalidTensorError, match="at least one"):
        ClassPrototypes(mean={}, count={})
    with pytest.raises(InvalidTensorError, match="same classes"):
        ClassPrototypes(mean={"fused": mean, "text": mean[:1]}, count={"fused": count, "text": count[:1]})


def test_unknown_modality_is_named():
    with pytest.raises(DataError, match=r"'image'.*audio"):
        prototypes_of(*random_batch(0)).known("image")


# --- pooling ---


@settings(max_examples=30)
@given(seeds)
def test_count_weighting_is_the_mean_of_all_records(seed):
    batches = clients_of(seed)
    together = [
        {m: torch.cat([b[0][m] for b in batches]) for m in DIMS},
        torch.cat([b[1] for b in batches]),
        {m: torch.cat([b[2][m] for b in batches]) for m in DIMS},
    ]
    pooled = pooled_prototypes([prototypes_of(*batch) for batch in batches], "count")
    # Client means are rounded to float32 first: a unit in the last place of values up to 16.
    assert_same(pooled, prototypes_of(*together), atol=2e-6)


@settings(max_examples=30)
@given(seeds, st.permutations(range(4)), st.sampled_from(["count", "uniform"]))
def test_order_of_clients_does_not_matter(seed, order, weighting):
    clients = [prototypes_of(*batch) for batch in clients_of(seed)]
    pooled = pooled_prototypes([clients[k] for k in order], weighting)
    assert_same(pooled, pooled_prototypes(clients, weighting))


@pytest.mark.parametrize("weighting", ["count", "uniform"])
def test_one_client_is_its_own_pool_to_the_last_bit(weighting):
    client = prototypes_of(*clients_of(5)[0])
    assert_same(pooled_prototypes([client], weighting), client, rtol=0, atol=0)


@pytest.mark.parametrize(("weighting", "expected"), [("count", 4.0), ("uniform", 3.0)])
def test_weighting_by_hand_and_a_missing_class_takes_no_part(weighting, expected):
    clients = [
        one_modality([[1.0], [7.0]], [1, 2]),
        one_modality([[5.0], [0.0]], [3, 0]),
    ]
    pooled = pooled_prototypes(clients, weighting)
    assert pooled.mean["fused"].tolist() == [[expected], [7.0]]
    assert pooled.count["fused"].tolist() == [4, 2]


def test_class_that_nobody_has_stays_unknown():
    pooled = pooled_prototypes([one_modality([[1.0], [0.0]], [1, 0])] * 2, "count")
    assert pooled.known("fused").tolist() == [True, False]


def test_pooling_refuses_no_clients_unlike_clients_and_unknown_weightings():
    client = one_modality([[1.0]], [1])
    with pytest.raises(DataError, match="no clients"):
        pooled_prototypes([], "count")
    with pytest.raises(DataError, match="one model"):
        pooled_prototypes([client, one_modality([[1.0, 2.0]], [1])], "count")
    with pytest.raises(DataError, match="one model"):
        pooled_prototypes([client, one_modality([[1.0]], [1], modality="text")], "count")
    with pytest.raises(ConfigError, match="'mean'"):
        pooled_prototypes([client], "mean")


# --- bank ---


def test_momentum_zero_forgets_and_one_keeps_to_the_last_bit():
    bank, pooled = (prototypes_of(*random_batch(seed)) for seed in (6, 7))
    for modality in DIMS:
        assert torch.equal(update_bank(bank, pooled, 0.0).mean[modality], pooled.mean[modality])
        assert torch.equal(update_bank(bank, pooled, 1.0).mean[modality], bank.mean[modality])


def test_bank_follows_the_closed_form_of_a_moving_average():
    # From P = 0 towards a constant p̄: P_t = (1 - γ^t) p̄.
    bank, pooled = one_modality([[0.0, 0.0]], [1]), one_modality([[2.0, -5.0]], [1])
    for _ in range(10):
        bank = update_bank(bank, pooled, 0.9)
    expected = (1 - 0.9**10) * torch.tensor([[2.0, -5.0]])
    torch.testing.assert_close(bank.mean["fused"], expected, rtol=1e-6, atol=0)  # ten roundings of 6e-8


def test_bank_starts_at_the_pool_and_a_bank_like_the_pool_does_not_move():
    pooled = prototypes_of(*random_batch(8))
    bank = update_bank(None, pooled, 0.9)
    assert_same(bank, pooled, rtol=0, atol=0)
    assert_same(update_bank(bank, pooled, 0.9), pooled, rtol=0, atol=0)


def test_new_class_starts_at_the_pool_and_missing_class_stays():
    bank = one_modality([[1.0], [0.0], [4.0], [0.0]], [5, 0, 7, 0])
    pooled = one_modality([[0.0], [9.0], [8.0], [0.0]], [0, 2, 3, 0])
    updated = update_bank(bank, pooled, 0.75)
    assert updated.mean["fused"].tolist() == [[1.0], [9.0], [5.0], [0.0]]
    assert updated.count["fused"].tolist() == [5, 2, 3, 0]


@pytest.mark.parametrize("momentum", [-0.1, 1.1, float("nan"), True, "0.9"])
def test_bank_refuses_a_momentum_outside_the_unit_interval(momentum):
    pooled = one_modality([[1.0]], [1])
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        update_bank(None, pooled, momentum)


def test_bank_refuses_prototypes_of_another_model():
    with pytest.raises(DataError, match="one model"):
        update_bank(one_modality([[1.0]], [1]), one_modality([[1.0, 1.0]], [1]), 0.9)
