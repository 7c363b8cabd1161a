"""Makes ``tiny_stages`` importable; one thread, where results repeat exactly; the tiny inputs as fixtures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from tiny_stages import artifact, tiny_latents, tiny_pairs

from fedsynth.data.paired import PairedClients
from fedsynth.data.sources import DataSource, locate
from fedsynth.pipeline.artifacts import Artifact


# By module: what a module's own fixtures train must have the bits of what its tests train.
@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def pairs() -> PairedClients:
    return tiny_pairs()


@pytest.fixture
def clients(tmp_path: Path, pairs: PairedClients) -> Artifact:
    """What the stage ``clients`` yields."""
    return artifact(tmp_path / "clients" / "output", {"pairs.safetensors": pairs.to_tensors()})


@pytest.fixture
def latents(tmp_path: Path) -> Artifact:
    """What the stage ``encode`` yields."""
    return artifact(tmp_path / "encode" / "output", {"latents.safetensors": tiny_latents()})


@pytest.fixture
def samples(tmp_path: Path) -> Artifact:
    """What ``mix`` and ``synthesize`` yield: 32 latents of each class, classes one after the other."""
    stream = torch.Generator().manual_seed(2)
    label = torch.arange(2).repeat_interleave(32)
    latent = torch.randn(64, 4, generator=stream) * torch.tensor([1.0, 2.0, 0.5, 1.0]) + 4 * label[:, None]
    return artifact(
        tmp_path / "samples" / "output", {"samples.safetensors": {"latent": latent, "label": label}}
    )


@pytest.fixture
def chest(tmp_path: Path) -> DataSource:
    """A file in the layout of ChestMNIST with three labels, the last without positives in training."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, num in (("train", 48), ("val", 24), ("test", 20)):
        label = (random.random((num, 3)) < (0.5, 0.25, 0.3)).astype(np.uint8)
        label[:, 2] *= split != "train"
        label[:2, :2] = np.eye(2)
        arrays[f"{split}_labels"] = label
        noise = random.integers(0, 128, (num, 8, 8))
        arrays[f"{split}_images"] = (noise + 100 * label[:, :1, None]).astype(np.uint8)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "chestmnist.npz", **arrays)
    return locate("chestmnist", tmp_path / "data", download=False)
