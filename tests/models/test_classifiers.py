"""The latent classifier F of Eq. (32)."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load, save

from fedsynth.models.classifiers import LatentClassifier
from fedsynth.models.inputs import ModelInputError


def latents(rows: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(seed))


def test_parameter_count_is_that_of_64_192_96_1():
    expected = 64 * 192 + 192 + 192 * 96 + 96 + 96 + 1
    assert sum(p.numel() for p in LatentClassifier().parameters()) == expected


def test_logits_are_one_a_row():
    assert LatentClassifier()(latents(7)).shape == (7,)


def test_standardization_undoes_an_affine_map_of_the_inputs():
    """F with statistics (a, b) sees in a + b h exactly what F without statistics sees in h."""
    model, h = LatentClassifier().eval(), latents()
    before = model(h)
    shift, scale = torch.linspace(-5, 5, 64), torch.linspace(0.1, 9, 64)
    model.set_standardization(shift, scale)
    torch.testing.assert_close(model(shift + scale * h), before, atol=1e-5, rtol=1e-4)


def test_standardization_travels_with_the_weights():
    model, other = LatentClassifier().eval(), LatentClassifier().eval()
    model.set_standardization(torch.full((64,), 2.0), torch.full((64,), 3.0))
    other.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(model(latents()), other(latents()))


def test_standardization_is_not_trained():
    assert not {"input_mean", "input_std"} & {name for name, _ in LatentClassifier().named_parameters()}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_statistics_are_refused(bad):
    std = torch.ones(64)
    std[3] = bad
    with pytest.raises(ModelInputError, match="std positive and finite"):
        LatentClassifier().set_standardization(torch.zeros(64), std)


def test_wrong_shapes_and_settings_are_refused():
    with pytest.raises(ModelInputError, match="latent must have shape"):
        LatentClassifier()(latents()[:, :5])
    with pytest.raises(ModelInputError, match="floating-point"):
        LatentClassifier()(latents().long())
    with pytest.raises(ModelInputError, match="mean must have shape"):
        LatentClassifier().set_standardization(torch.zeros(3), torch.ones(64))
    with pytest.raises(ModelInputError, match="dropout"):
        LatentClassifier(dropout=-0.1)
