"""Prototypes and batches that several tests of this folder start from."""

from __future__ import annotations

import torch

from fedsynth.prototypes.class_prototypes import ClassPrototypes, PrototypeSums

NUM_CLASSES = 3
DIMS = {"audio": 4, "text": 2}


def random_batch(seed, n=40):
    """Embeddings of two modalities, labels, and masks that leave out about a third."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = {m: 3 * torch.randn(n, dim, generator=generator) + 1 for m, dim in DIMS.items()}
    label = torch.randint(NUM_CLASSES, (n,), generator=generator)
    present = {m: torch.rand(n, generator=generator) > 0.3 for m in DIMS}
    return embeddings, label, present


def one_modality(mean, count, modality="fused"):
    """Prototypes of one modality from nested lists."""
    return ClassPrototypes(
        mean={modality: torch.tensor(mean, dtype=torch.float32)}, count={modality: torch.tensor(count)}
    )


def prototypes_of(embeddings, label, present=None, num_classes=NUM_CLASSES):
    """All records in one batch."""
    sums = PrototypeSums(num_classes)
    sums.add(embeddings, label, present)
    return sums.prototypes()


def assert_same(actual, expected, rtol=3e-7, atol=3e-7):
    """Equal counts; means equal up to two roundings to float32 (a unit in the last place is 1.2e-7)."""
    assert actual.modalities == expected.modalities
    for modality in expected.modalities:
        assert torch.equal(actual.count[modality], expected.count[modality])
        torch.testing.assert_close(actual.mean[modality], expected.mean[modality], rtol=rtol, atol=atol)
