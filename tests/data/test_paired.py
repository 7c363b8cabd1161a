from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedsynth.data.paired import PairedClients, PairedSplit, PairingStatistics, modality_masks, standardize
from fedsynth.errors import ArtifactError, ConfigError


def _random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=30, deadline=None)
@given(drop=st.floats(0, 1), num=st.integers(0, 200), seed=st.integers(0, 2**31))
def test_at_least_one_modality_is_always_kept(drop: float, num: int, seed: int) -> None:
    masks = modality_masks(num, drop, _random(seed))
    assert masks.shape == (num, 2)
    assert masks.any(dim=1).all()


def test_mask_frequencies_follow_the_restore_rule() -> None:
    num, drop = 40_000, 0.25
    masks = modality_masks(num, drop, _random())
    both, image_only = masks.all(dim=1).double().mean(), (masks[:, 0] & ~masks[:, 1]).double().mean()
    # Five binomial standard errors; resampling instead of restoring would give .600 and .200.
    assert abs(both - (1 - drop) ** 2) < 5 * (0.25 / num) ** 0.5
    assert abs(image_only - (1 - (1 - drop) ** 2) / 2) < 5 * (0.25 / num) ** 0.5


def test_no_drop_keeps_all_and_certain_drop_keeps_one() -> None:
    assert modality_masks(50, 0.0, _random()).all()
    assert (modality_masks(50, 1.0, _random()).sum(dim=1) == 1).all()


def test_masks_depend_on_the_generator_only() -> None:
    state = torch.get_rng_state()
    assert torch.equal(modality_masks(99, 0.5, _random(1)), modality_masks(99, 0.5, _random(1)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("num", "drop"), [(3, -0.1), (3, 1.1), (3, float("nan")), (-1, 0.5)])
def test_impossible_masks_are_a_config_error(num: int, drop: float) -> None:
    with pytest.raises(ConfigError):
        modality_masks(num, drop, _random())


def test_standardize_is_affine() -> None:
    mean, std = torch.tensor(2.0, dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64)
    result = standardize(np.array([2.0, 6.0, -2.0]), mean, std)
    assert result.dtype == torch.float32
    assert result.tolist() == [0.0, 1.0, -1.0]


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_standardize_refuses_an_impossible_deviation(std: float) -> None:
    with pytest.raises(ConfigError, match="standardize"):
        standardize(
            np.zeros(2), torch.tensor(0.0, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        )


def _pairs() -> PairedClients:
    def split(num: int, seed: int) -> PairedSplit:
        random = _random(seed)
        index = torch.arange(num)
        image, ecg = torch.randn(num, 1, 28, 28, generator=random), torch.randn(num, 1, 256, generator=random)
        return PairedSplit(image, ecg, index % 2, index % 3, index, index + 5, index + 100)

    statistics = PairingStatistics(*torch.tensor([0.5, 0.2, 0.0, 1.0], dtype=torch.float64))
    return PairedClients(split(9, 0), split(4, 1), split(5, 2), statistics, {"num_clients": 3})


def test_tensors_survive_safetensors_bit_for_bit(tmp_path: Path) -> None:
    pairs = _pairs()
    tensors = pairs.to_tensors()
    save_file(tensors, tmp_path / "pairs.safetensors")
    again = PairedClients.from_tensors(load_file(tmp_path / "pairs.safetensors"), pairs.report)
    assert again.report == pairs.report
    assert again.to_tensors().keys() == tensors.keys()
    for name, tensor in again.to_tensors().items():
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor, tensors[name])


def test_missing_tensor_is_an_artifact_error() -> None:
    tensors = _pairs().to_tensors()
    del tensors["val/ecg"]
    with pytest.raises(ArtifactError, match="val/ecg"):
        PairedClients.from_tensors(tensors)
