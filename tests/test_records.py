from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsynth.errors import ArtifactError, PrivacyError
from fedsynth.records import InvalidTensorError, Mixture, ShardRelease, check_indices, check_tensor


@pytest.fixture
def release() -> ShardRelease:
    return ShardRelease(
        means=torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        variances=torch.ones(3, 2, 4, 5, dtype=torch.float64),
        counts=torch.ones(3, 2, 4, dtype=torch.int64),
        noise_std=torch.full((3, 2, 4), 0.5, dtype=torch.float64),
        clip_radius=11.0,
        epsilon=4.0,
        delta=1e-5,
    )


@pytest.fixture
def mixture() -> Mixture:
    return Mixture(torch.full((2, 4), 0.25), torch.zeros(2, 4, 5), torch.ones(2, 4, 5))


@pytest.mark.parametrize("epsilon", [4.0, math.inf])
def test_release_survives_a_file_bit_for_bit(release, epsilon, tmp_path):
    release = replace(release, epsilon=epsilon)
    save_file(release.to_tensors(), tmp_path / "release.safetensors")
    loaded = ShardRelease.from_tensors(load_file(tmp_path / "release.safetensors"))
    assert (loaded.clip_radius, loaded.epsilon, loaded.delta) == (11.0, epsilon, 1e-5)
    for name in ("means", "variances", "counts", "noise_std"):
        assert torch.equal(getattr(loaded, name), getattr(release, name))


def test_mixture_survives_a_file_bit_for_bit(mixture, tmp_path):
    save_file(mixture.to_tensors(), tmp_path / "mixture.safetensors")
    loaded = Mixture.from_tensors(load_file(tmp_path / "mixture.safetensors"))
    for name, tensor in mixture.to_tensors().items():
        assert torch.equal(getattr(loaded, name), tensor)


def test_tensors_of_another_version_are_refused(release, mixture):
    with pytest.raises(ArtifactError, match=r"missing tensors \['epsilon'\]"):
        ShardRelease.from_tensors({k: v for k, v in release.to_tensors().items() if k != "epsilon"})
    with pytest.raises(ArtifactError, match=r"unknown tensors \['extra'\]"):
        Mixture.from_tensors(mixture.to_tensors() | {"extra": torch.zeros(1)})


def test_records_are_frozen(release):
    with pytest.raises(FrozenInstanceError):
        release.epsilon = 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"means": torch.zeros(2, 4, 5)}, "means must have 4 axes"),
        ({"variances": torch.ones(3, 2, 4, 4)}, "variances must have shape"),
        ({"variances": -torch.ones(3, 2, 4, 5)}, "variances must not be negative"),
        ({"counts": torch.ones(3, 2, 4)}, "counts must be an int64"),
        ({"counts": torch.ones(3, 2, dtype=torch.int64)}, "counts must have shape"),
        ({"noise_std": torch.ones(3, 2)}, "noise_std must have shape"),
        ({"noise_std": torch.full((3, 2, 4), torch.nan)}, "noise_std holds"),
        ({"clip_radius": 0.0}, "clip_radius"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_release_refuses_inconsistent_content(release, change, message):
    with pytest.raises(InvalidTensorError, match=message):
        replace(release, **change)


def test_release_refuses_a_guarantee_without_noise(release):
    silent = torch.zeros(3, 2, 4)
    with pytest.raises(PrivacyError, match="noise_std 0"):
        replace(release, noise_std=silent)
    assert replace(release, noise_std=silent, epsilon=math.inf).epsilon == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": torch.full((2, 4), 0.3)}, "sum to 1"),
        ({"weights": torch.tensor([[1.5, -0.5, 0, 0]] * 2)}, "must be >= 0"),
        ({"weights": torch.ones(2)}, "weights must have shape"),
        ({"variances": torch.zeros(2, 4, 5)}, "variances must be > 0"),
        ({"means": torch.full((2, 4, 5), torch.inf)}, "means holds 40"),
    ],
)
def test_mixture_refuses_inconsistent_content(mixture, change, message):
    with pytest.raises(InvalidTensorError, match=message):
        replace(mixture, **change)


def test_checks_name_what_they_got():
    with pytest.raises(InvalidTensorError, match="latents must be a floating-point torch tensor, got list"):
        check_tensor([1.0], "latents")
    with pytest.raises(InvalidTensorError, match=r"labels must be .* got torch\.float32 \(2,\)"):
        check_indices(labels=torch.zeros(2))
    with pytest.raises(InvalidTensorError, match="'latents': 3, 'labels': 2"):
        check_indices(num_records=3, labels=torch.zeros(2, dtype=torch.int64))
